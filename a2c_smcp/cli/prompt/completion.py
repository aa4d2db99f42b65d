"""How a line may go on: commands, then names that exist here, then arguments from the schema of a tool."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from a2c_smcp.cli.prompt.arguments import Parameter, parameters_of
from a2c_smcp.cli.prompt.language import Command, WrongUse, words_of

__all__ = ["Candidate", "Known", "complete"]


class Candidate(NamedTuple):
    """A word that may stand where the cursor is, in place of the `typed` characters before it."""

    text: str
    about: str = ""
    is_whole: bool = True
    typed: int = 0


@dataclass(frozen=True)
class Known:
    """The commands, the names behind their placeholders with a word on each, and the schemas of tools."""

    commands: Sequence[Command]
    names: Mapping[str, Callable[[], Mapping[str, str]]]
    schema: Callable[[str], Mapping[str, Any]]


def complete(line: str, known: Known) -> list[Candidate]:
    """What may follow a line, as far as the cursor."""
    try:
        words = words_of(line)
    except WrongUse:
        return []
    last = "" if not line or line[-1].isspace() else words.pop()
    if not line.endswith(last):
        return []
    found = [*_commands(words, known.commands), *_arguments(words, last, known)]
    return [each._replace(typed=len(last)) for each in found if shlex.split(each.text)[0].startswith(last)]


def _commands(words: Sequence[str], commands: Sequence[Command]) -> Iterable[Candidate]:
    """The next words of the commands that begin with these. One with more to come has nothing to tell yet."""
    found: dict[str, str] = {}
    for command in commands:
        name = command.name.split()
        if len(name) > len(words) and name[: len(words)] == [*words]:
            found.setdefault(name[len(words)], command.text if len(name) == len(words) + 1 else "")
    return [Candidate(word, about) for word, about in found.items()]


def _arguments(words: Sequence[str], last: str, known: Known) -> Iterable[Candidate]:
    for command in known.commands:
        name = command.name.split()
        if name == [*words[: len(name)]]:
            yield from _argument(command, words[len(name) :], last, known)


def _argument(command: Command, given: Sequence[str], last: str, known: Known) -> Iterable[Candidate]:
    place = command.place_of(len(given))
    if place == "NAME=VALUE":
        return _parameters(parameters_of(known.schema(given[0])), given[1:], last)
    names = known.names.get(place, dict)()
    return [Candidate(shlex.quote(name), about) for name, about in names.items()]


def _parameters(parameters: Sequence[Parameter], given: Sequence[str], last: str) -> Iterable[Candidate]:
    name, sign, _ = last.partition("=")
    if sign:
        values = [value for each in parameters if each.name == name for value in each.values]
        return [Candidate(f"{shlex.quote(name)}={shlex.quote(value)}") for value in values]
    missing = [each for each in parameters if each.name not in {word.partition("=")[0] for word in given}]
    return [Candidate(f"{shlex.quote(each.name)}=", _about(each), is_whole=False) for each in missing]


def _about(parameter: Parameter) -> str:
    kind = " or ".join(parameter.types)
    return " ".join(part for part in (kind, "" if parameter.is_required else "(optional)") if part)
