"""`a2c-smcp agent call`, `agent read`, `agent prompt`: read the arguments, ask a computer, show or save the answer.

On a terminal, questions of the tool are put to the person there. Ctrl-C cancels the call on the computer.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import typer

from a2c_smcp.agent import Answer, EmitOptions, Question
from a2c_smcp.agent.blobs.transfers import Receive
from a2c_smcp.cli.agent.listings import arguments_of, with_server_hints
from a2c_smcp.cli.agent.run import OfficeContext, file_failure, put_result, save, show_saved
from a2c_smcp.cli.agent.show import UntilStopped
from a2c_smcp.cli.errors import Failed, WrongUse, result_remedy
from a2c_smcp.cli.terminal import Conversations, Meter, Terminal, printable, put_json, put_text, spinning
from a2c_smcp.errors import BadRequest, CallCancelled, CallTimeout, NotFound, SMCPError
from a2c_smcp.protocol.codec import loads_exactly
from a2c_smcp.protocol.names import name_hint
from a2c_smcp.protocol.results import SAVED_TO, CallToolResult, from_base64
from a2c_smcp.registry.calls.context import OnProgress

_PATIENCE = 5.0
"""Seconds to wait until a cancelled call has ended."""

_FORMS = "Write JSON, such as '{\"a\": 1}', or a=1 b=2, or - to read JSON from stdin."


def read_arguments(words: list[str], of: str = "a tool") -> dict[str, Any]:
    """Read a JSON object, `-` for one on stdin, or `KEY=VALUE` words, where a value that is not JSON is a string.

    Raises `WrongUse`.
    """
    if len(words) == 1 and (words[0] == "-" or words[0].lstrip()[:1] in ("{", "[", '"')):
        return _object(sys.stdin.read() if words[0] == "-" else words[0], of)
    if unpaired := [word for word in words if not word.partition("=")[0] or "=" not in word]:
        raise WrongUse(f"{unpaired[0]!r} is no argument of {of}", _FORMS)
    return {key: _value(text) for key, _, text in (word.partition("=") for word in words)}


def _object(text: str, of: str) -> dict[str, Any]:
    try:
        arguments = loads_exactly(text)
    except BadRequest as error:
        raise WrongUse(f"The arguments cannot be read: {error.about}", _FORMS) from None
    if not isinstance(arguments, dict):
        raise WrongUse(f"The arguments of {of} are a JSON object", _FORMS)
    return arguments


def _value(text: str) -> Any:
    try:
        return loads_exactly(text)
    except BadRequest:
        return text


@dataclass(frozen=True)
class ToolCallWork:
    """The work of `a2c-smcp agent call`."""

    computer: str
    tool: str
    params: dict[str, Any]
    timeout: int
    as_json: bool
    extend: bool = False
    save_to: Path | None = None

    async def __call__(self, context: OfficeContext) -> None:
        try:
            Receive(self.save_to).prepare()
        except OSError as error:
            raise file_failure(error) from None
        try:
            with spinning(context.terminal, f"{self.tool} on {self.computer}", "Ctrl-C cancels it") as meter:
                result = await self._result(context, meter)
        except BadRequest as error:
            remedy = f"a2c-smcp agent tools {self.computer} --json shows what its tools take."
            raise Failed(error.message, remedy) from None
        except CallTimeout as error:
            if error.details.get("reason") in ("owner_silent", "client_silent"):
                raise Failed(
                    f"{error.about[0].upper()}{error.about[1:]}",
                    "Ask them, and call again; --timeout gives them more time.",
                ) from None
            longer = "" if self.extend else ", --extend as much as it needs while it shows progress"
            raise Failed(error.message, f"It was cancelled there; --timeout gives it more time{longer}.") from None
        except OSError as error:
            remedy = f"{self.tool} has run on {self.computer}; what is saved by now is whole. Name another place."
            raise file_failure(error, remedy) from None
        show_saved(result, context)
        if self.as_json:
            put_result(result.to_wire(), "--save DIR writes them to a file")
        else:
            self._show(result, context)
            await self._show_links(result, context)
        if result.is_error:
            raise typer.Exit(1)

    async def _result(self, context: OfficeContext, meter: Meter) -> CallToolResult:
        req_id, options = uuid4().hex, self._options(context, meter)
        options["on_transfer"] = meter.report_bytes
        calling = asyncio.create_task(
            context.agent.emit_tool_call(self.computer, self.tool, self.params, self.timeout, req_id=req_id, **options)
        )
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            if meter.has_bytes:  # then the tool has run
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                context.terminal.show(f"{self.tool} has run on {self.computer}, its result was not fetched", "yellow")
            else:
                await self._cancel(context, calling, req_id)
            raise

    def _options(self, context: OfficeContext, meter: Meter) -> EmitOptions:
        """Ask for progress and questions only where a person sees them."""
        options, person = EmitOptions(extend=True) if self.extend else EmitOptions(), PersonAtTerminal(context.terminal)
        if context.terminal.console:
            options["on_progress"], options["on_state"] = meter.report, meter.become
        else:
            options["on_waiting"] = lambda status: context.terminal.show(printable(str(status)))
        if person.is_there:
            options["on_question"] = person
        if self.save_to is not None:
            options["save_to"] = self.save_to
        return options

    async def _cancel(self, context: OfficeContext, calling: asyncio.Task[CallToolResult], req_id: str) -> None:
        context.terminal.show(f"cancelling {self.tool} on {self.computer} (again to quit at once)")
        outcome: object = None
        with suppress(TimeoutError, SMCPError):
            async with asyncio.timeout(_PATIENCE):
                await context.agent.cancel(req_id)
                (outcome,) = await asyncio.gather(calling, return_exceptions=True)
        if isinstance(outcome, CallCancelled):
            context.terminal.show(f"{self.tool} was cancelled on {self.computer}", "yellow")
        elif isinstance(outcome, CallToolResult):
            context.terminal.show(f"{self.tool} had already finished on {self.computer}", "yellow")
        else:
            context.terminal.show(f"{self.computer} has not confirmed that {self.tool} was cancelled", "red")

    def _show(self, result: CallToolResult, context: OfficeContext) -> None:
        """Print the result on stdout; errors and hints on stderr."""
        if result.is_error:
            context.terminal.show(result.text or f"{self.tool} failed and does not say why", "red")
            if remedy := result_remedy(result, self.computer):
                context.terminal.show(remedy)
        elif result.text:
            put_text(result.text)
        elif result.structured_content is not None:
            put_json(result.structured_content)
        for kind in _unseen(result.content):
            where = "--json has it" if kind not in _SAVED or self.save_to else "--save DIR writes it to a file"
            context.terminal.show(f"there is more, of type {kind}: {where}", "yellow")

    async def _show_links(self, result: CallToolResult, context: OfficeContext) -> None:
        """Say how to read the resources that the result links to."""
        uris = [link["uri"] for link in result.links if isinstance(link.get("uri"), str)]
        if not uris:
            return
        tools: list[Any] = await context.agent.get_tools(self.computer)
        servers = (str(tool.get("bundle_id")) for tool in tools if tool.get("name") == self.tool)
        server = next(servers, "SERVER")
        for uri in uris:
            line = shlex.join(["a2c-smcp", "agent", "read", self.computer, server, uri])
            context.terminal.show(f"it links to a resource: {line}", "yellow")


_SAVED = ("image", "audio", "resource")


def _unseen(content: Iterable[Any]) -> list[str]:
    """The types of content blocks that are neither text nor links, nor written to files."""
    blocks = [block for block in content if isinstance(block, dict)]
    kinds = (str(block.get("type")) for block in blocks if SAVED_TO not in (block.get("_meta") or {}))
    return [kind for kind in dict.fromkeys(kinds) if kind not in ("text", "resource_link")]


class PersonAtTerminal:
    """The person who runs the command, as the `on_question` of the call. Several questions are asked in a row."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    @property
    def is_there(self) -> bool:
        return self._terminal.can_ask and self._terminal.console is not None

    async def __call__(self, question: Question) -> Answer:
        """Ask until there is an answer. A cancel ends the form: the question is withdrawn."""
        from a2c_smcp.cli.form import TerminalForm
        from a2c_smcp.cli.sign_in import open_page

        who, goes_to = _parties(question)
        form = TerminalForm(question, self._terminal, who=who, goes_to=goes_to, open_page=open_page)
        _drop_typed_keys()
        return await self._talks.converse(form.fill)

    @cached_property
    def _talks(self) -> Conversations:
        from a2c_smcp.cli.prompt.prompt import answer_reader

        return Conversations(self._terminal, answer_reader())


def _parties(question: Question) -> tuple[str, str]:
    """Who asks, and where the answer goes."""
    computer = printable(question.computer)
    if question.is_approval:
        return f"The computer {computer}", f"Your answer goes to {computer}."
    server = f"the MCP server {printable(question.server)}" if question.server else "an MCP server"
    return printable(f"{question.tool or 'The tool'} on {computer}"), f"Your answer goes to {server} of {computer}."


def _drop_typed_keys() -> None:
    """Forget keys that were typed before the form could be seen: they answer nothing in it."""
    if os.name == "nt":
        import msvcrt

        while msvcrt.kbhit():  # type: ignore[attr-defined]
            msvcrt.getwch()  # type: ignore[attr-defined]
        return
    import termios

    termios.tcflush(sys.stdin, termios.TCIFLUSH)


# `a2c-smcp agent read` and `agent prompt`: print or save a resource, and print a prompt with its arguments.
#
# Text goes to stdout. Binary contents go to a file or a pipe, and never to a terminal.

_SAID_BY_SERVER = (NotFound.code, SMCPError.code)
"""Codes of errors with which an MCP server refuses a request."""
_CLOSE = 0.8
"""URIs of one server begin alike: only a slip of the pen is meant to be another one."""


@dataclass(frozen=True)
class ReadWork:
    """The work of `a2c-smcp agent read`."""

    computer: str
    server: str
    uri: str
    output: Path | None
    as_json: bool

    async def __call__(self, context: OfficeContext) -> None:
        with spinning(context.terminal, f"reading {self.uri}") as meter:
            answer = await self.fetch(context, meter.report_bytes)
        if self.output:
            await self._write(self.output, answer["contents"], context)
        elif self.as_json:
            self.put_json(answer)
        else:
            self.put(answer["contents"])

    async def fetch(self, context: OfficeContext, on_transfer: OnProgress | None = None) -> dict[str, Any]:
        async with with_server_hints(context, self.computer, self.server):
            try:
                answer = await context.agent.read_resource(
                    self.computer, self.server, self.uri, on_transfer=on_transfer
                )
            except SMCPError as error:
                raise await self._explained(error, context) from None
        if "contents" not in answer:
            raise SMCPError("the MCP server asks something before it gives this resource")
        return answer

    async def _explained(self, error: SMCPError, context: OfficeContext) -> Exception:
        """The error, or a better one if the URI is unknown."""
        if error.code not in _SAID_BY_SERVER:
            return error
        listed = (await context.agent.get_resources(self.computer, self.server))["resources"]
        known = [resource["uri"] for resource in listed]
        if self.uri in known:
            return error
        close = difflib.get_close_matches(self.uri, known, n=1, cutoff=_CLOSE)
        all_of_them = f"a2c-smcp agent resources {self.computer} {self.server} shows what there is."
        return Failed(error.message, f"Did you mean {close[0]}?" if close else all_of_them)

    def put(self, contents: list[dict[str, Any]]) -> None:
        """Print the contents. Raises `Failed` before anything is printed if a terminal would get bytes."""
        is_terminal = sys.stdout.isatty()
        if is_terminal and (binary := next((content for content in contents if not _has_text(content)), None)):
            kind = binary.get("mimeType") or "of no known type"
            raise Failed(f"{self.uri} is binary ({kind}), which a terminal cannot show", "--output FILE saves it.")
        for content in contents:
            if is_terminal:
                put_text(content["text"])
            else:
                sys.stdout.buffer.write(_bytes_of(content))
        sys.stdout.flush()

    def put_json(self, answer: dict[str, Any], *, in_one_line: bool = False) -> None:
        put_result(answer, "--output FILE saves them", in_one_line=in_one_line)

    async def _write(self, file: Path, contents: list[dict[str, Any]], context: OfficeContext) -> None:
        if len(contents) != 1:
            raise Failed(
                f"{self.uri} has {len(contents)} parts, which do not fit one file", "--json prints all of them."
            )
        content = _bytes_of(contents[0])
        await save(content, file)
        context.terminal.show(f"{len(content):,} bytes written to {file}")


def _has_text(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("text"), str)


def _bytes_of(content: Mapping[str, Any]) -> bytes:
    """A lone surrogate, which JSON allows, is escaped."""
    if _has_text(content):
        return str(content["text"]).encode("utf-8", "backslashreplace")
    try:
        return from_base64(str(content.get("blob")))
    except BadRequest:
        raise SMCPError("the content of this resource is neither text nor base64") from None


class ReadWatch(UntilStopped):
    """The work of `a2c-smcp agent read --watch`: print the resource now, and again after each change."""

    def __init__(self, work: ReadWork) -> None:
        super().__init__()
        self._work = work
        self._changes: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, context: OfficeContext) -> None:
        async with with_server_hints(context, self._work.computer, self._work.server):
            await context.agent.subscribe_resource(self._work.computer, self._work.server, self._work.uri)
        await self._show(context)
        await self.run(self._follow(context))

    async def _follow(self, context: OfficeContext) -> None:
        while True:
            await self._changes.get()
            while not self._changes.empty():
                self._changes.get_nowait()
            await self._show(context)

    async def _show(self, context: OfficeContext) -> None:
        answer = await self._work.fetch(context)
        if self._work.as_json:
            self._work.put_json(answer, in_one_line=True)
            return
        context.terminal.show(f"{datetime.now().astimezone():%H:%M:%S}  {self._work.uri}", "dim")
        self._work.put(answer["contents"])

    def on_resource_updated(self, computer: str, server: str, uri: str, office: str) -> None:
        self._changes.put_nowait(None)

    def on_computer_enter_office(self, data: dict[str, Any]) -> None:
        """It may have changed while the computer was away."""
        if data["computer"] == self._work.computer:
            self._changes.put_nowait(None)


@dataclass(frozen=True)
class PromptWork:
    """The work of `a2c-smcp agent prompt`."""

    computer: str
    server: str
    name: str
    arguments: dict[str, str]
    as_json: bool

    async def __call__(self, context: OfficeContext) -> None:
        async with with_server_hints(context, self.computer, self.server):
            try:
                prompt = await context.agent.get_prompt(self.computer, self.server, self.name, self.arguments)
            except SMCPError as error:
                raise await self._explained(error, context) from None
        if self.as_json:
            put_result(prompt, "a pipe or a file gets them")
        else:
            self._put(prompt.get("messages", []), context)

    async def _explained(self, error: SMCPError, context: OfficeContext) -> Exception:
        """The error, or a better one if the name or the arguments are wrong."""
        if error.code not in (*_SAID_BY_SERVER, BadRequest.code):
            return error
        listed = (await context.agent.get_prompts(self.computer, self.server))["prompts"]
        known = {str(prompt["name"]): prompt for prompt in listed}
        if self.name not in known:
            return Failed(f"{self.server} has no prompt {self.name!r}", name_hint(self.name, [*known], "prompts"))
        return self._wrong_arguments(arguments_of(known[self.name])) or error

    def _wrong_arguments(self, known: Mapping[str, bool]) -> Failed | None:
        if missing := [name for name, is_required in known.items() if is_required and name not in self.arguments]:
            words = " ".join(f"{name}=…" for name in missing)
            return Failed(f"The prompt {self.name!r} needs {' and '.join(missing)}", f"Add {words}.")
        if unknown := [name for name in self.arguments if name not in known]:
            takes = f"It takes {', '.join(known)}." if known else "It takes none."
            return Failed(f"The prompt {self.name!r} has no argument {unknown[0]!r}", takes)
        return None

    def _put(self, messages: list[dict[str, Any]], context: OfficeContext) -> None:
        """Print the text of the messages, with who says it if they are several."""
        found = [(message.get("role"), _text_of(message.get("content"))) for message in messages]
        texts = [(role, text) for role, text in found if text is not None]
        if len(messages) == 1 and texts:
            put_text(texts[0][1])
        elif texts:
            put_text("\n\n".join(f"{role}:\n{text}" for role, text in texts))
        if len(texts) < len(messages):
            context.terminal.show("there is more than text: --json has it", "yellow")


def _text_of(content: object) -> str | None:
    """The text of a message, also of one with an embedded text."""
    if not isinstance(content, Mapping):
        return None
    inner = content.get("resource")
    text = content.get("text", inner.get("text") if isinstance(inner, Mapping) else None)
    return text if isinstance(text, str) else None


def read_prompt_arguments(words: list[str]) -> dict[str, str]:
    """Read arguments as `read_arguments` does; those of a prompt are strings. Raises `WrongUse`."""
    if not (len(words) == 1 and (words[0] == "-" or words[0].lstrip()[:1] in ("{", "[", '"'))):
        read_arguments(words, "a prompt")
        return {key: text for key, _, text in (word.partition("=") for word in words)}
    arguments = read_arguments(words, "a prompt")
    if odd := [key for key, value in arguments.items() if not isinstance(value, str)]:
        raise WrongUse(f"The argument {odd[0]!r} is not a string", "Arguments of a prompt are strings.")
    return arguments
