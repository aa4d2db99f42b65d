"""The language of the prompt: commands are rows, and what is usage, help and completion is read from them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps, loads_exactly

if TYPE_CHECKING:
    from a2c_smcp.cli.prompt.console import Console, Job

__all__ = [
    "Candidate",
    "Command",
    "Known",
    "Parameter",
    "WrongUse",
    "complete",
    "find",
    "parameters_of",
    "read_arguments",
    "to_ask",
    "words_of",
]

Run: TypeAlias = "Callable[[Console, list[str]], Awaitable[Job | None]]"
"""Does the command. What takes its time is returned, and goes on while the next one is typed."""


class WrongUse(Exception):
    """A line that means nothing. The sentence says what to write instead."""


class Command(NamedTuple):
    """`takes` are placeholders, `[OPTIONAL]` ones last; one that ends with `…` may be repeated or left out.

    Lines that are not `kept` do not get into the history.
    """

    name: str
    takes: str
    text: str
    run: Run
    kept: bool = True

    @property
    def usage(self) -> str:
        return f"{self.name} {self.takes}".rstrip()

    @property
    def places(self) -> list[str]:
        return [place.strip("[]") for place in self.takes.split()]

    def place_of(self, index: int) -> str:
        """What the argument at this position is; nothing where there may be none."""
        places = self.places
        if index < len(places):
            return places[index].removesuffix("…")
        return places[-1].removesuffix("…") if places and places[-1].endswith("…") else ""

    def check(self, arguments: Sequence[str]) -> None:
        """Raises `WrongUse`."""
        wanted = self.takes.split()
        least = sum(not place.startswith("[") for place in wanted)
        most = float("inf") if self.takes.rstrip("]").endswith("…") else len(wanted)
        if not least <= len(arguments) <= most:
            raise WrongUse(f"usage: {self.usage}")


def words_of(line: str) -> list[str]:
    """Words as a shell has them; JSON that begins a word is one to the end of the line. Raises `WrongUse`."""
    if found := re.search(r"(?:^|\s)(?=\{)", line):
        with suppress(ValueError):  # a brace within quotation marks begins no word
            return [*shlex.split(line[: found.end()]), line[found.end() :].strip()]
    try:
        return shlex.split(line)
    except ValueError:
        raise WrongUse("a quotation mark is not closed") from None


def find(words: Sequence[str], commands: Sequence[Command]) -> tuple[Command, list[str]]:
    """The command that begins like that, and its arguments. Raises `WrongUse`."""
    for length in (2, 1):
        for command in commands:
            if command.name == " ".join(words[:length]):
                arguments = [*words[len(command.name.split()) :]]
                command.check(arguments)
                return command, arguments
    if family := [command.usage for command in commands if command.name.split()[0] == words[0]]:
        raise WrongUse(f"usage: {', or '.join(family)}")
    raise WrongUse(f"{words[0]!r} is no command: help lists them")


_FORMS = 'write NAME=VALUE words, or JSON such as {"a": 1}'


@dataclass(frozen=True)
class Parameter:
    """One property of a tool's schema, as far as a person needs to know it."""

    name: str
    types: tuple[str, ...]
    description: str
    choices: tuple[Any, ...]
    is_required: bool
    is_secret: bool

    @property
    def question(self) -> str:
        about = " or ".join(_text(choice) for choice in self.choices) or " or ".join(self.types)
        notes = ", ".join(note for note in (about, "" if self.is_required else "Enter leaves it out") if note)
        said = f"{self.description.strip().partition(chr(10))[0]}\n" if self.description else ""
        return f"{said}{self.name}{f' ({notes})' if notes else ''}: "

    @property
    def values(self) -> list[str]:
        """What a value may be, where that can be listed."""
        return [_text(each) for each in self.choices] or ["true", "false"] * ("boolean" in self.types)

    def read(self, text: str) -> Any:
        """The value that is meant. Raises `ValueError` with a sentence."""
        if self.types == ("string",):
            return text
        try:
            value = loads_exactly(text)
        except BadRequest:
            if self.types and "string" not in self.types:
                raise ValueError(f"{self.name} must be {' or '.join(self.types)}, as JSON") from None
            return text
        return text if isinstance(value, str) and "string" in self.types else value


def parameters_of(schema: Mapping[str, Any]) -> list[Parameter]:
    """The required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = required if isinstance(required, list) else []
    found = [_parameter(name, each, name in needed) for name, each in properties.items()]
    return sorted(found, key=lambda parameter: not parameter.is_required)


def read_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object, or `NAME=VALUE` words whose values are read as the schema has them. Raises `ValueError`."""
    if len(words) == 1 and words[0].startswith("{"):
        return _object(words[0])
    known = {parameter.name: parameter for parameter in parameters_of(schema)}
    found = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (name and sign):
            raise ValueError(f"{word!r} is no argument: {_FORMS}")
        found[name] = known.get(name, _parameter(name, {}, False)).read(text)
    return found


def to_ask(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[Parameter]:
    """What is still to be asked for: what is missing, and what may be left out where nothing was given at all."""
    return [each for each in parameters_of(schema) if each.name not in given and (each.is_required or not given)]


def _parameter(name: str, schema: object, is_required: bool) -> Parameter:
    known: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    types, choices = known.get("type"), known.get("enum")
    return Parameter(
        name=name,
        types=tuple(map(str, types)) if isinstance(types, list) else (str(types),) if types else (),
        description=str(known.get("description") or ""),
        choices=tuple(choices) if isinstance(choices, list) else (),
        is_required=is_required,
        is_secret=known.get("format") == "password" or known.get("writeOnly") is True,
    )


def _object(text: str) -> dict[str, Any]:
    """What begins with a brace and is JSON is an object."""
    try:
        found: dict[str, Any] = loads_exactly(text)
    except BadRequest as error:
        raise ValueError(f"{error.about}: {_FORMS}") from None
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


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
