"""JSON-RPC messages as lines of text. Faulty answers are repaired where possible, so that a request fails at once."""

from __future__ import annotations

import codecs
import gc
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import BaseModel, ValidationError

from a2c_smcp.mcp_host.message_limits import (
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

__all__ = ["LineDecoder", "from_line", "read_line", "to_line", "to_message"]

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
        with _without_collector() if len(line) > LARGE else nullcontext():
            data = _JSON.decode(line)
    except (ValueError, RecursionError):
        data = _read_leniently(line)
    return data if isinstance(data, list) else [data]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Stop the garbage collector, which would traverse a large message again and again while it is parsed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def to_line(message: SessionMessage) -> str:
    """ASCII, so that every encoding can carry it."""
    return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True), separators=(",", ":")) + "\n"


def to_message(data: Any) -> SessionMessage:
    """Raises `ValueError` for a value that is no message."""
    if not isinstance(data, dict):
        raise ValueError("a message is an object")  # noqa: TRY004  # it is the text that is wrong
    data["jsonrpc"] = "2.0"
    kind = _kind(data)
    try:
        return SessionMessage(kind.model_validate(data))  # type: ignore[arg-type]  # one of the four kinds
    except ValidationError:
        if "method" in data or not isinstance(data.get("id"), str | int):
            raise
        odd = {"code": INTERNAL_ERROR, "message": ODD_ANSWER}
        return SessionMessage(JSONRPCError.model_validate({"jsonrpc": "2.0", "id": data["id"], "error": odd}))


def _read_leniently(line: str | bytes) -> Any:
    """Parse what the strict parser refuses: infinite numbers become null, lone surrogates are kept."""
    try:
        return json.loads(line, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _kind(data: dict[str, Any]) -> type[BaseModel]:
    if "method" in data:
        return JSONRPCRequest if data.get("id") is not None else JSONRPCNotification
    return JSONRPCError if data.get("error") is not None else JSONRPCResponse
