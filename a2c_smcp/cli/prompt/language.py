"""The language of the prompt: commands are rows, and what is usage, help and completion is read from them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from a2c_smcp.cli.prompt.console import Console
    from a2c_smcp.cli.prompt.jobs import Job

__all__ = ["Command", "WrongUse", "find", "words_of"]

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
