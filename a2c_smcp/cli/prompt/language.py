"""The language of the prompt: lines become commands with arguments, and completion proposes how a line goes on.

A command is a row (`Command`): usage, help and completion are read from it. This module knows nothing of what commands
act on, and opens no terminal.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps, loads_exactly

Console = TypeVar("Console")
"""The object that commands act on."""


class BadLine(Exception):
    """A line that is no command, or cannot be done. The message says what to write instead."""


@dataclass(eq=False)
class BackgroundJob:
    """The rest of a long command: it runs while the next line is typed. `note` says how far it is."""

    name: str
    work: Callable[[], Awaitable[None]] = field(repr=False)
    note: str = ""
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        note = f", {self.note}" if self.note else ""
        return f"{self.name}: {time.monotonic() - self.began:.1f} s{note}"


Run: TypeAlias = Callable[[Console, list[str]], Awaitable[BackgroundJob | None]]
"""Does a command with its arguments, and returns a job if something is left to do."""


class Command(NamedTuple, Generic[Console]):
    """A command of the prompt.

    `takes` names its arguments: `[OPTIONAL]` ones last, also `[--name VALUE]`; one that ends with `…` may be repeated
    or left out. Lines with `kept=False` are not kept in the history.
    """

    name: str
    takes: str
    text: str
    run: Run[Console]
    kept: bool = True

    @property
    def usage(self) -> str:
        return f"{self.name} {self.takes}".rstrip()

    def placeholder(self, index: int) -> str:
        """Return the name of the argument at this position; empty if there is none."""
        names = [name.strip("[]") for name in self.takes.split()]
        if index < len(names):
            return names[index].removesuffix("…")
        return names[-1].removesuffix("…") if names and names[-1].endswith("…") else ""

    def check(self, arguments: Sequence[str]) -> None:
        """Raise `BadLine` for too few or too many arguments."""
        wanted = self.takes.split()
        least = len(self.takes.partition("[")[0].split())
        most = float("inf") if self.takes.rstrip("]").endswith("…") else len(wanted)
        if not least <= len(arguments) <= most:
            raise BadLine(f"usage: {self.usage}")


def split_words(line: str) -> list[str]:
    """Split a line like a shell; a word that begins with `{` is JSON up to the end of the line. Raises `BadLine`."""
    if start := re.search(r"(?:^|\s)(?=\{)", line):
        with suppress(ValueError):  # a brace within quotation marks begins no word
            return [*shlex.split(line[: start.end()]), line[start.end() :].strip()]
    try:
        return shlex.split(line)
    except ValueError:
        raise BadLine("a quotation mark is not closed") from None


def find_command(words: Sequence[str], commands: Sequence[Command[Console]]) -> tuple[Command[Console], list[str]]:
    """Return the command that these words name, and its arguments. Raises `BadLine`."""
    for length in (2, 1):
        for command in commands:
            if command.name == " ".join(words[:length]):
                arguments = [*words[len(command.name.split()) :]]
                command.check(arguments)
                return command, arguments
    if family := [command.usage for command in commands if command.name.split()[0] == words[0]]:
        raise BadLine(f"usage: {', or '.join(family)}")
    raise BadLine(f"{words[0]!r} is no command: help lists them")


_FORMS = 'write NAME=VALUE words, or JSON such as {"a": 1}'


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool, as its JSON schema describes it."""

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
        text = f"{self.description.strip().partition(chr(10))[0]}\n" if self.description else ""
        return f"{text}{self.name}{f' ({notes})' if notes else ''}: "

    @property
    def values(self) -> list[str]:
        """The possible values, if the schema lists them."""
        return [_text(choice) for choice in self.choices] or ["true", "false"] * ("boolean" in self.types)

    def read(self, text: str) -> Any:
        """Return the value of what was typed: text for a string, otherwise JSON. Raises `ValueError`."""
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
    """Return the arguments of a tool, required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = required if isinstance(required, list) else []
    parameters = [_parameter(name, field, name in needed) for name, field in properties.items()]
    return sorted(parameters, key=lambda parameter: not parameter.is_required)


def read_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object, or `NAME=VALUE` words whose values have the types of the schema. Raises `ValueError`."""
    if len(words) == 1 and words[0].startswith("{"):
        return _object(words[0])
    known = {parameter.name: parameter for parameter in parameters_of(schema)}
    arguments = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (name and sign):
            raise ValueError(f"{word!r} is no argument: {_FORMS}")
        arguments[name] = known.get(name, _parameter(name, {}, False)).read(text)
    return arguments


def missing_parameters(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[Parameter]:
    """Return the arguments to ask for: required ones that are missing; optional ones only if none was given."""
    return [field for field in parameters_of(schema) if field.name not in given and (field.is_required or not given)]


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
    """JSON that begins with a brace, and is therefore an object. Raises `ValueError`."""
    try:
        arguments: dict[str, Any] = loads_exactly(text)
    except BadRequest as error:
        raise ValueError(f"{error.about}: {_FORMS}") from None
    return arguments


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


class Candidate(NamedTuple):
    """A proposal. It replaces the `typed` characters before the cursor; `is_whole`: the next word may follow."""

    text: str
    about: str = ""
    is_whole: bool = True
    typed: int = 0


@dataclass(frozen=True)
class CompletionSource:
    """The source of proposals: commands, names for each placeholder with a description, and schemas of tools."""

    commands: Sequence[Command[Any]]
    names: Mapping[str, Callable[[], Mapping[str, str]]]
    schema: Callable[[str], Mapping[str, Any]]


def proposals(line: str, known: CompletionSource) -> list[Candidate]:
    """Return proposals for the end of a line, which is cut at the cursor."""
    try:
        words = split_words(line)
    except BadLine:
        return []
    last = "" if not line or line[-1].isspace() else words.pop()
    if not line.endswith(last):
        return []
    proposals = [*_commands(words, known.commands), *_arguments(words, last, known)]
    return [option._replace(typed=len(last)) for option in proposals if shlex.split(option.text)[0].startswith(last)]


def _commands(words: Sequence[str], commands: Sequence[Command[Any]]) -> Iterable[Candidate]:
    """The next words of commands that begin with these. Only the last word of a command has a description."""
    found: dict[str, str] = {}
    for command in commands:
        name = command.name.split()
        if len(name) > len(words) and name[: len(words)] == [*words]:
            found.setdefault(name[len(words)], command.text if len(name) == len(words) + 1 else "")
    return [Candidate(word, about) for word, about in found.items()]


def _arguments(words: Sequence[str], last: str, known: CompletionSource) -> Iterable[Candidate]:
    for command in known.commands:
        name = command.name.split()
        if name == [*words[: len(name)]]:
            yield from _argument(command, words[len(name) :], last, known)


def _argument(command: Command[Any], given: Sequence[str], last: str, known: CompletionSource) -> Iterable[Candidate]:
    placeholder = command.placeholder(len(given))
    if placeholder == "NAME=VALUE":
        return _parameters(parameters_of(known.schema(given[0])), given[1:], last)
    names = known.names.get(placeholder, dict)()
    return [Candidate(shlex.quote(name), about) for name, about in names.items()]


def _parameters(parameters: Sequence[Parameter], given: Sequence[str], last: str) -> Iterable[Candidate]:
    name, sign, _ = last.partition("=")
    if sign:
        values = [value for parameter in parameters if parameter.name == name for value in parameter.values]
        return [Candidate(f"{shlex.quote(name)}={shlex.quote(value)}") for value in values]
    names = {word.partition("=")[0] for word in given}
    found = []
    for parameter in parameters:
        if parameter.name not in names:
            notes = (" or ".join(parameter.types), "" if parameter.is_required else "(optional)")
            found.append(Candidate(f"{shlex.quote(parameter.name)}=", " ".join(filter(None, notes)), is_whole=False))
    return found
