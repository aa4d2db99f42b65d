"""Under which ids secrets become inputs: the same ones whenever the same file is converted again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from a2c_smcp.computer.secrets.replace import Secret

__all__ = ["Ids"]


class Ids:
    """The secrets that were met, by id. Those that are to be kept stay what they are."""

    def __init__(self, keep: Iterable[str] = ()) -> None:
        self.keep = frozenset(keep)
        self.secrets: dict[str, Secret] = {}
        self.taken: set[str] = set()
        """Ids that inputs have already."""
        self._of: dict[tuple[str, str], str] = {}

    def secret(self, server: str, place: str, name: str, value: str) -> str:
        """What stands for a secret of a server: its input, or the secret itself where it is kept."""
        if self._is_in_kept(server, value):
            return value
        id_ = self._of.get((server, value)) or self._give(
            id_of(server, name), place, value, f"{name.strip('-')} of {server}"
        )
        self._of[server, value] = id_
        return value if id_ in self.keep else f"${{input:{id_}}}"

    def give_own(self, id_: str, place: str, value: str) -> None:
        """The value of an input that there is already."""
        self.secrets[id_] = Secret(id_, place, value)

    def _give(self, wanted: str, place: str, value: str, description: str) -> str:
        """An id for this value: the wanted one, unless another value has it."""
        id_, number = wanted, 1
        while id_ in self.taken or (id_ in self.secrets and self.secrets[id_].value != value):
            number += 1
            id_ = f"{wanted}-{number}"
        self.secrets.setdefault(id_, Secret(id_, place, value, description))
        return id_

    def _is_in_kept(self, server: str, value: str) -> bool:
        return any(
            owner == server and id_ in self.keep and value != whole and value in whole
            for (owner, whole), id_ in self._of.items()
        )


def id_of(server: str, name: str) -> str:
    """`github` and `GITHUB_TOKEN` are `github-token`; `tracker` and `Authorization` are `tracker-authorization`."""
    first, second = _words(server), _words(name)
    return second if second.startswith(f"{first}-") or not first else f"{first}-{second}"


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
