"""Under which names an agent's registry shows the tools of computers. The shortest that is nobody else's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from a2c_smcp.agent.types import Seat

__all__ = ["names_of"]

_FORMS = (
    lambda seat, tool: tool,
    lambda seat, tool: f"{seat.computer}__{tool}",
    lambda seat, tool: f"{seat.office}__{seat.computer}__{tool}",
)


def names_of(offered: Mapping[Seat, Iterable[str]], local: Collection[str] = ()) -> dict[tuple[Seat, str], str]:
    """A name for each tool, whatever the order in which the computers came.

    Those that clash, with one another or with a local tool, all get the next longer form; where even that is not
    enough, they get none.
    """
    forms = dict.fromkeys(((seat, tool) for seat, tools in offered.items() for tool in tools), 0)
    while clashing := _clashing(forms, local):
        for tool in clashing:
            if forms[tool] + 1 < len(_FORMS):
                forms[tool] += 1
            else:
                del forms[tool]
    return {tool: _FORMS[form](*tool) for tool, form in forms.items()}


def _clashing(forms: Mapping[tuple[Seat, str], int], local: Collection[str]) -> list[tuple[Seat, str]]:
    """Those that have to give way: of two of different length the longer one."""
    names = {tool: _FORMS[form](*tool) for tool, form in forms.items()}
    shortest: dict[str, int] = {}
    for tool, name in names.items():
        shortest[name] = min(forms[tool], shortest.get(name, len(_FORMS)))
    claims = Counter(name for tool, name in names.items() if forms[tool] == shortest[name])
    return [tool for tool, name in names.items() if name in local or forms[tool] > shortest[name] or claims[name] > 1]
