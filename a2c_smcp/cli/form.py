"""A question of an MCP server as a form on the terminal: show it, read the answer to each field, let it be corrected.

Everything that the server says is data: control characters are escaped, long texts are cut, and each line of it stands
behind a margin that only this module draws, wrapped to the width of the terminal. So no text of a server can look like
a part of the form, or draw over it. A form is one conversation (`Conversations.converse`): nothing else writes as long
as it is open.

Ctrl-D declines, Ctrl-C leaves the question unanswered. If the question is withdrawn, the caller cancels the form.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from a2c_smcp.cli.terminal import Conversations, Interrupted, Read, Terminal, yes_or_no
from a2c_smcp.computer.configuration.definitions import Input, default_of, is_secret
from a2c_smcp.computer.questions.forms import MISSING, Field, NoForm, check_content, content_of, fields_of
from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.config.inputs import PickOption
from a2c_smcp.mcp_host.config.servers import CommandInput, PickStringInput
from a2c_smcp.protocol.escaping import escaped, web_host
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.registry.schemas.check import pointer

if TYPE_CHECKING:
    from rich.console import Console

_MESSAGE, _MESSAGE_LINES = 4000, 40
_DESCRIPTION, _DESCRIPTION_LINES = 1000, 12
_NAME, _TITLE, _VALUE = 80, 200, 200
_MARGIN = "│ "
_KEYS = "Ctrl-D declines, Ctrl-C leaves it unanswered."


OpenPage: TypeAlias = Callable[[str], Awaitable[bool]]
"""Opens a URL in a browser, and returns whether it could."""


class TerminalForm:
    """One question on the terminal. `who` says who asks, `goes_to` where the answer goes."""

    def __init__(self, question: Question, terminal: Terminal, *, who: str, goes_to: str, open_page: OpenPage) -> None:
        self._question, self._terminal, self._open_page = question, terminal, open_page
        self._who, self._goes_to = who, goes_to

    async def fill(self, read: Read) -> Answer:
        """Ask until there is an answer. A cancel is for a question that is withdrawn."""
        try:
            return await (self._page(read) if self._question.mode == "url" else self._form(read))
        except asyncio.CancelledError:
            self._tell("the question is withdrawn: its call has ended, or its time is over", "yellow")
            raise
        except Interrupted:
            self._tell("left unanswered", "yellow")
            return Answer("cancel")
        except EOFError:
            self._tell("declined", "yellow")
            return Answer("decline")

    # A form

    async def _form(self, read: Read) -> Answer:
        self._introduce(f"{self._who} asks:")
        try:
            fields = fields_of(self._question)
        except NoForm as problem:
            self._tell(f"This question cannot be shown as a form, because {escaped(str(problem))}.", "red")
            return Answer("cancel")
        if not fields:
            self._tell(f"There is nothing to fill in. {self._goes_to} {_KEYS}", "dim")
            return Answer("accept", {}) if await self._yes(read, "Agree? (y or n): ") else Answer("decline")
        has_default = any(field.default is not MISSING for field in fields)
        enter = "Enter takes the value in [brackets]. " if has_default else ""
        self._tell(f"{self._goes_to} {enter}{_KEYS}", "dim")
        values = {field.name: await self._value(field, read) for field in fields}
        while not await self._is_right(fields, values, read):
            pass
        return Answer("accept", content_of(values))

    async def _value(self, field: Field, read: Read, known: Any = MISSING) -> Any:
        """Ask for one field until what is typed can be its value. `known` is its value so far."""
        self._quote(field.description, _DESCRIPTION, _DESCRIPTION_LINES)
        for number, choice in enumerate(field.choices, 1):
            self._quote(f"{number}. {cut(_in_one_line(choice.title), _TITLE)}", _TITLE + 10, 4)
        default = field.default if known is MISSING else known
        while True:
            typed = await read(_prompt(field, default), field.is_secret)
            try:
                return field.answer(typed, default)
            except ValueError as problem:
                self._tell(escaped(str(problem)), "red")

    async def _is_right(self, fields: Sequence[Field], values: dict[str, Any], read: Read) -> bool:
        """True if the answers can be sent. If not, some have been corrected, and all are to be checked again.

        A form of one field is sent as soon as it is filled in.
        """
        if wrong := await self._wrong_fields(fields, values):
            for field in wrong:
                values[field.name] = await self._value(field, read)
            return False
        if len(fields) == 1:
            return True
        for number, field in enumerate(fields, 1):
            shown = cut(_in_one_line(field.shown(values[field.name])), _VALUE)
            self._quote(f"{number}. {_name_of(field)}: {shown}", _NAME + _VALUE + 60, 6)
        text = f"Send this? (y, n to decline, or 1 to {len(fields)} to correct one) [y]: "
        answer = (await read(text, False)).strip().lower()
        if answer in ("", "y", "yes"):
            return True
        if answer in ("n", "no"):
            raise EOFError
        if answer.isdecimal() and 1 <= int(answer[:9]) <= len(fields):
            field = fields[int(answer) - 1]
            values[field.name] = await self._value(field, read, values[field.name])
        else:
            self._tell(f"answer y, n, or a number from 1 to {len(fields)}", "red")
        return False

    async def _wrong_fields(self, fields: Sequence[Field], values: dict[str, Any]) -> list[Field]:
        """Show which values do not fit the whole schema: it may have rules that a field does not show."""
        faults: list[dict[str, str]] = []
        try:
            await check_content(self._question.schema, content_of(values))
        except BadRequest as error:
            faults = error.details["errors"]
        messages = {"/".join(fault["path"].split("/")[:2]): fault["message"] for fault in reversed(faults)}
        wrong = [field for field in fields if pointer([field.name]) in messages]
        for field in wrong:
            self._tell(f"{_name_of(field)}: {cut(_in_one_line(messages[pointer([field.name])]), _VALUE)}", "red")
        return wrong

    # A page

    async def _page(self, read: Read) -> Answer:
        """Ask before a page is opened. Accepting says that the person goes there, not what comes of it."""
        self._introduce(f"{self._who} asks you to open a page:")
        url, host = self._question.url, web_host(self._question.url)
        if not host:
            self._tell(f"That is no web address, and it is not opened: {cut(escaped(url), _VALUE)}", "red")
            return Answer("decline")
        self._tell(escaped(url), "underline", wrap=False)
        self._tell(f"That is a page of {host}. Whatever you enter goes there. {_KEYS}", "dim")
        if not await self._yes(read, "Open it? (y or n): "):
            return Answer("decline")
        if not await self._open_page(url):
            self._tell("No browser can be opened here: open the address above yourself.", "yellow")
            if not await self._yes(read, "Have you opened it? (y or n): "):
                return Answer("decline")
        return Answer("accept")

    # Inside

    async def _yes(self, read: Read, text: str) -> bool:
        while True:
            answer = (await read(text, False)).strip().lower()
            if answer in ("y", "yes"):
                return True
            if answer in ("n", "no"):
                return False
            self._tell("answer y or n", "red")

    def _introduce(self, who: str) -> None:
        self._tell(who, "bold")
        self._quote(self._question.message, _MESSAGE, _MESSAGE_LINES)
        if problem := self._question.problem:
            self._tell(f"Your last answer was refused: {cut(_in_one_line(problem), _VALUE)}", "red")

    def _quote(self, text: str, most: int, most_lines: int) -> None:
        """Show text of the server behind the margin."""
        console = self._terminal.console
        assert console
        for line in quoted(text, console, most, most_lines):
            self._tell(line)

    def _tell(self, line: str, style: str = "", *, wrap: bool = True) -> None:
        from rich.text import Text

        console = self._terminal.console
        assert console
        console.print(Text(line, style), soft_wrap=not wrap)


def quoted(text: str, console: Console, most: int, most_lines: int) -> list[str]:
    """Text of others in lines behind a margin, which no line of it can leave: escaped, cut, and wrapped here."""
    from rich.text import Text

    shown = Text(cut(escaped(text.strip().replace("\r\n", "\n"), keep="\n"), most))
    lines = [*shown.wrap(console, max(console.width - len(_MARGIN), 10))] if shown.plain else []
    more = [f"[… {len(lines) - most_lines} more lines …]"] if len(lines) > most_lines else []
    return [_MARGIN + line for line in (*(line.plain.rstrip() for line in lines[:most_lines]), *more)]


def _prompt(field: Field, default: Any) -> str:
    notes = [escaped(field.expects)]
    if default is MISSING and not field.is_required:
        notes.append("Enter leaves it out")
    if field.is_secret:
        notes.append("not shown")
    shown = f" [{cut(_in_one_line(field.shown(default)), _VALUE)}]" if default is not MISSING else ""
    return f"{_name_of(field)} ({', '.join(notes)}){shown}: "


def _name_of(field: Field) -> str:
    return cut(_in_one_line(field.title), _NAME)


def _in_one_line(text: str) -> str:
    return escaped(" ".join(text.split()))


def cut(text: str, most: int) -> str:
    """The beginning of a long text, with how much is left out."""
    return text if len(text) <= most else f"{text[:most]} [… {len(text) - most} more characters …]"


# Questions to the owner: values of inputs, and whether to run a command or apply a change


class Questions(Conversations):
    """Asks the owner. Ctrl-D gives no answer (`None`), which is not an error."""

    async def value(self, definition: Input) -> str | None:
        """Ask for the value of an input, again if the answer is not valid."""
        default, hidden = default_of(definition), is_secret(definition)
        options = definition.options if isinstance(definition, PickStringInput) else []
        lines = [f"  {number}. {option.label}" for number, option in enumerate(options, 1)]
        shown = f" [{default}]" if default is not None and not hidden else ""
        text = "\n".join([*lines, f"{definition.description or definition.id}{shown}: "])
        return await self.ask(text, partial(_accepted, options, default), hidden=hidden)

    async def command(self, definition: CommandInput, argv: tuple[str, ...]) -> bool:
        """Ask for consent to run the command of an input."""
        return bool(await self.ask(f"input {definition.id!r} runs {shlex.join(argv)}: let it? [y/N]: ", yes_or_no))

    async def consent(self, differences: Sequence[object]) -> bool:
        """Ask for consent to a change of the configuration files."""
        lines = [f"  {difference}" for difference in differences]
        text = "\n".join(["the configuration has changed, and this needs your yes:", *lines, "apply it? [y/N]: "])
        return bool(await self.ask(text, yes_or_no))


def _accepted(options: Sequence[PickOption], default: str | None, answer: str) -> str:
    """Return the value of an answer: an option by its number, label or value, if there are options."""
    if options and (answer or not default):
        choices = [{"const": option.value, "title": option.label} for option in options]
        return str(Field("", {"oneOf": choices}, is_required=True, is_secret=False).read(answer))
    if not (value := answer or default):
        raise ValueError("an answer is needed; Ctrl-D gives none")
    return value
