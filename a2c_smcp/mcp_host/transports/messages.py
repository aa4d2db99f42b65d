"""JSON-RPC messages as lines of text. Faulty answers are repaired where possible, so that a request fails at once."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
from mcp.shared.message import SessionMessage as SessionMessage
from mcp_types import INTERNAL_ERROR, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import BaseModel, ValidationError

from a2c_smcp.mcp_host.limits import (
    LARGE,
    MAX_BYTES,
    PEEK,
    cut_listing,
    has_too_many_values,
    over_bytes,
    over_values,
    refusal,
)
from a2c_smcp.mcp_host.transports.direct_requests import ODD_ANSWER
from a2c_smcp.protocol.codec import collector_paused
from a2c_smcp.protocol.questions import INPUT_METHODS

_BROKEN = "\udfff"  # a mark that no valid text decodes to: a lone surrogate
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_MARK_BROKEN = "a2c.mark-broken"
codecs.register_error(_MARK_BROKEN, lambda error: (_BROKEN, getattr(error, "end", 0)))


class LineDecoder:
    """Bytes in, whole lines out. A mark replaces a line that is not text.

    A line that is over a limit is skipped to its end and not kept. An error answer replaces it, as soon as the request
    that it answers is known.
    """

    def __init__(self, encoding: str, errors: str, limit: int = MAX_BYTES) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(_MARK_BROKEN if errors == "strict" else errors)
        self._limit = limit
        self._parts: list[str] = []
        self._length = 0
        self._is_skipped = self._is_answered = False

    def feed(self, data: bytes) -> list[str]:
        first, *others = self._decoder.decode(data).split("\n")
        lines = self._add(first)
        if not others:
            return lines
        lines += [self._end(), *map(self._checked, others[:-1])]
        return lines + self._add(others[-1])

    def _add(self, part: str) -> list[str]:
        self._parts.append(part)
        if self._is_skipped:
            self._parts[1:] = ["".join(self._parts[1:])[-PEEK:]]
            return []
        self._length += len(part) if part.isascii() else len(part.encode(errors="surrogatepass"))
        return self._skip() if self._length > self._limit else []

    def _skip(self) -> list[str]:
        """From now on keep only the beginning and the end of the line."""
        self._is_skipped = True
        line = "".join(self._parts)
        self._parts = [line[:PEEK], line[-PEEK:]]
        answer = refusal(over_bytes(self._limit), line[:PEEK])
        self._is_answered = bool(answer)
        return [answer] if answer else []

    def _end(self) -> str:
        line = "".join(self._parts)
        if self._is_skipped:
            line = "" if self._is_answered else refusal(over_bytes(self._limit), "", self._parts[-1]) or _BROKEN
        self._parts, self._length = [], 0
        self._is_skipped = self._is_answered = False
        return self._checked(line)

    def _checked(self, line: str) -> str:
        if _BROKEN in line:
            return _BROKEN
        if len(line) > LARGE and (cut := cut_listing(line)):
            line = cut.decode()
        if has_too_many_values(line):
            return refusal(over_values(), line[:PEEK], line[-PEEK:]) or _BROKEN
        return line


def from_line(line: str | bytes) -> list[SessionMessage]:
    """Return the messages of a line: one, or several in a batch. Raises `ValueError` if there is none."""
    return [to_message(item) for item in read_line(line)]


def read_line(line: str | bytes) -> list[Any]:
    """Return the same messages as plain JSON values."""
    try:
        with collector_paused(len(line)):
            data = _JSON.decode(line)
    except (ValueError, RecursionError):
        data = _read_leniently(line)
    return data if isinstance(data, list) else [data]


def to_line(message: SessionMessage) -> str:
    """Return a message as a line, in ASCII, so that every encoding can carry it."""
    return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True), separators=(",", ":")) + "\n"


def to_message(data: Any) -> SessionMessage:
    """Return the message in a JSON value. Raises `ValueError` if it is none."""
    if not isinstance(data, dict):
        raise ValueError("a message is an object")  # noqa: TRY004  # it is the text that is wrong
    data["jsonrpc"] = "2.0"
    kind: type[BaseModel]
    if "method" in data:
        kind = JSONRPCRequest if data.get("id") is not None else JSONRPCNotification
    else:
        kind = JSONRPCError if data.get("error") is not None else JSONRPCResponse
    try:
        return SessionMessage(kind.model_validate(data))
    except ValidationError:
        if "method" in data or not isinstance(data.get("id"), str | int):
            raise
        odd = {"code": INTERNAL_ERROR, "message": ODD_ANSWER}
        return SessionMessage(JSONRPCError.model_validate({"jsonrpc": "2.0", "id": data["id"], "error": odd}))


def _read_leniently(line: str | bytes) -> Any:
    """Parse what the strict parser refuses: infinite numbers become null, lone surrogates are kept."""
    try:
        return json.loads(
            line,
            parse_constant=lambda _: None,
            parse_float=lambda digits: number if math.isfinite(number := float(digits)) else None,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


RELATED_CALL = "a2c_call"
"""In the `_meta` of a request that came in the HTTP response to a call: the progress token of that call."""


def related_to(token: object, line: bytes) -> bytes:
    """Return a line of an event; if it is a question, with the call that it belongs to."""
    name, colon, data = line.partition(b":")
    try:
        message = json.loads(data) if name == b"data" else None
    except (ValueError, RecursionError):
        return line
    if not isinstance(message, dict) or message.get("method") not in INPUT_METHODS:
        return line
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    message["params"] = {**params, "_meta": {**meta, RELATED_CALL: token}}
    return name + colon + json.dumps(message).encode()


# Streams of JSON lines: some servers send several messages as `application/json`, one on each line.
#
# MCP wants `text/event-stream` for that. Such a body is given the form of events on its way, so that everything after
# it need not know. Only a body without a length is looked at, and only its first line: a message by itself is an
# event, and a message that goes on in the next line is a plain JSON body.

_LONGEST = 256 * 1024
"""Bytes of a first line that are looked at."""


async def lines_as_events(response: httpx2.Response) -> None:
    """Give a body of JSON lines the form of events. Waits for the first line of a body that may be one."""
    headers, body = response.headers, response.stream
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_open = not {"content-length", "content-encoding"} & headers.keys()
    if kind != "application/json" or not is_open or not isinstance(body, httpx2.AsyncByteStream):
        return
    parts = aiter(body)
    begun = b""
    async for part in parts:
        begun += part
        if b"\n" in begun or len(begun) > _LONGEST:
            break
    line, end, _ = begun.partition(b"\n")
    if is_lines := bool(end) and _is_message(line):
        headers["content-type"] = "text/event-stream"
    response.stream = _GoingOn(body, begun, parts, is_lines=is_lines)


class _GoingOn(httpx2.AsyncByteStream):
    """A body whose beginning has been read."""

    def __init__(
        self, body: httpx2.AsyncByteStream, begun: bytes, parts: AsyncIterator[bytes], *, is_lines: bool
    ) -> None:
        self._body, self._begun, self._parts, self._is_lines = body, begun, parts, is_lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = _Events() if self._is_lines else None
        yield events.of(self._begun) if events else self._begun
        async for part in self._parts:
            yield events.of(part) if events else part
        if events:
            yield events.end()

    async def aclose(self) -> None:
        await self._body.aclose()


class _Events:
    """Bytes of lines in, bytes of events out. Nothing is held back."""

    def __init__(self) -> None:
        self._is_in_line = False

    def of(self, data: bytes) -> bytes:
        out = bytearray()
        for line in data.replace(b"\r", b"").splitlines(keepends=True):
            out += line if self._is_in_line else b"event: message\ndata: " + line
            self._is_in_line = not line.endswith(b"\n")
            if not self._is_in_line:
                out += b"\n"
        return bytes(out)

    def end(self) -> bytes:
        return b"\n\n" if self._is_in_line else b""


def _is_message(line: bytes) -> bool:
    try:
        message = json.loads(line)
    except ValueError:
        return False
    return isinstance(message, dict) and "jsonrpc" in message
