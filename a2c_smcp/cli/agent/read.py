"""`a2c-smcp agent read` and `agent prompt`: print or save a resource, and print a prompt with its arguments.

Text goes to stdout. Binary contents go to a file or a pipe, and never to a terminal.
"""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from a2c_smcp.cli.agent.call import read_arguments
from a2c_smcp.cli.agent.listings import arguments_of, with_server_hints
from a2c_smcp.cli.agent.run import OfficeContext, put_result, save
from a2c_smcp.cli.agent.show import UntilStopped
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.terminal import put_text, spinning
from a2c_smcp.errors import BadRequest, NotFound, SMCPError
from a2c_smcp.protocol.names import name_hint
from a2c_smcp.protocol.results import from_base64
from a2c_smcp.registry.calls.context import OnProgress

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
