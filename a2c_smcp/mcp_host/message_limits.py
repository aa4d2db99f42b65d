"""How much an MCP server may send in one message, and what its caller gets when that is too much.

A message is a line of a pipe, the body of an HTTP response or one event of a stream. It is limited in bytes, after
decompression, and in JSON values, because a few bytes (`{},`) can become many objects. What is over a limit is never
parsed and not kept: an error answer takes its place, so that the request it belongs to fails at once and the
connection lives on. Which request that is can be read from the beginning or the end of the message.

A long list of tools or resources is the exception: it is cut to more than is ever used of it, before it is parsed.
Scanning a message costs a twentieth of parsing it, and the event loop does nothing else meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from types import TracebackType
from typing import Any, Self

import msgspec
import orjson
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from a2c_smcp.mcp_host.failures import OversizedAnswer

__all__ = [
    "LARGE",
    "MAX_BYTES",
    "MAX_RESULT_VALUES",
    "MAX_VALUES",
    "MOST_UNANSWERED",
    "PEEK",
    "check_result",
    "cut_listing",
    "has_too_many_values",
    "is_within",
    "limit_requests",
    "over_bytes",
    "over_values",
    "refusal",
    "refusal_of",
    "text_in",
    "too_large",
]

MAX_BYTES = 16 * 1024 * 1024
"""WIRE §6: four times what can be sent on to an agent."""
MAX_VALUES = 300_000
"""As many as the SDK's models read in a sixth of a second, which is how long they hold the event loop."""
MAX_ITEMS = 2000
"""Of a list of tools or resources in a large message."""
LARGE = 1024 * 1024
"""Smaller messages are parsed as they are."""
MAX_RESULT_VALUES = 250_000
"""In what is handed on to an agent: each of them is looked at when secrets are masked."""
PEEK = 1024
"""So much is kept of either end of a message that is too large."""

_SAID = "the server's answer exceeded the {} limit"
_READ = re.compile(re.escape(_SAID).replace(r"\{\}", r"\d+ (?:byte|value)"))
_ID = r'"id"\s*:\s*(?P<id>"(?:[^"\\]|\\.){0,128}"|\d{1,18})'
_AT_BEGINNING = re.compile(rf'\s*{{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?{_ID}\s*,\s*"(?:result|error)"')
_AT_END = re.compile(rf',\s*{_ID}\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?}}\s*$')


def over_bytes(limit: int) -> str:
    return _SAID.format(f"{limit} byte")


def over_values(limit: int = MAX_VALUES) -> str:
    return _SAID.format(f"{limit} value")


def too_large(said: str) -> OversizedAnswer | None:
    """The failure that one of our own error answers stands for; `None` for any other text."""
    return OversizedAnswer(found[0]) if (found := _READ.search(said)) else None


def refusal(said: str, beginning: str, end: str = "") -> str:
    """The error answer in place of a message, as JSON; empty if it is not known which request that answers."""
    found = _AT_BEGINNING.match(beginning) or _AT_END.search(end)
    return refusal_of(json.loads(found["id"]), said) if found else ""


def refusal_of(request_id: str | int, said: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": INTERNAL_ERROR, "message": said}})


class _Message(msgspec.Struct):
    id: str | int
    result: dict[str, msgspec.Raw]


_message = msgspec.json.Decoder(_Message)
_items = msgspec.json.Decoder(list[msgspec.Raw])


def cut_listing(text: str | bytes) -> bytes | None:
    """The same answer with the first `MAX_ITEMS` of its list; `None` if it is none, or not that long."""
    try:
        message = _message.decode(text)
        cut = {name: items[:MAX_ITEMS] for name, items in _lists(message.result) if len(items) > MAX_ITEMS}
    except (ValueError, RecursionError):
        return None
    answer = {"jsonrpc": "2.0", "id": message.id, "result": message.result | cut}
    return msgspec.json.encode(answer) if cut else None


def _lists(result: dict[str, msgspec.Raw]) -> Iterator[tuple[str, list[msgspec.Raw]]]:
    for name in ("tools", "resources"):
        if name in result:
            yield name, _items.decode(result[name])


def has_too_many_values(text: str) -> bool:
    """Counted without parsing: commas and brackets outside of strings."""
    if len(text) <= MAX_VALUES or _separators(text) <= MAX_VALUES:
        return False
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    if plain.count('"') > 4 * MAX_VALUES:  # each value may have a key
        return True
    return _separators("".join(plain.split('"')[::2])) > MAX_VALUES


def _separators(text: str) -> int:
    return sum(map(text.count, ",{["))


def check_result(result: dict[str, Any]) -> None:
    """Raises `OversizedAnswer` for one with too many values."""
    if is_within(result, MAX_RESULT_VALUES):
        return
    count = 0
    for level in _levels(result):
        count += sum(map(len, level))
        if count > MAX_RESULT_VALUES:
            raise OversizedAnswer(over_values(MAX_RESULT_VALUES))


def is_within(result: dict[str, Any], most: int) -> bool:
    """Whether its JSON has at most so many bytes, and so no more values or characters. This spares counting them."""
    try:
        return len(orjson.dumps(result)) <= most
    except TypeError:  # a huge number, a lone surrogate
        return False


def text_in(result: dict[str, Any]) -> int:
    """The characters of all its texts, keys included: as JSON it has at least as many bytes."""
    return sum(
        len(text)
        for level in _levels(result)
        for node in level
        for text in (chain(node, node.values()) if isinstance(node, dict) else node)
        if isinstance(text, str)
    )


def _levels(result: dict[str, Any]) -> Iterator[list[dict[str, Any] | list[Any]]]:
    """The objects and arrays in it, those at the same depth together."""
    level: list[Any] = [result]
    while level:
        yield level
        inner = chain.from_iterable(node.values() if isinstance(node, dict) else node for node in level)
        level = [child for child in inner if isinstance(child, dict | list)]


MOST_UNANSWERED = 64


def limit_requests(read: Any, write: Any) -> tuple[Any, Any]:
    """Both streams of a connection, with the limit."""
    unanswered = _Unanswered()
    return _Incoming(read, unanswered), _Outgoing(write, unanswered)


class _Unanswered:
    count = 0


class _Stream:
    def __init__(self, stream: Any, unanswered: _Unanswered) -> None:
        self._stream = stream
        self._unanswered = unanswered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, traceback)


class _Incoming(_Stream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._stream.__anext__()
            if not (isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest)):
                return item
            if self._unanswered.count < MOST_UNANSWERED:
                self._unanswered.count += 1
                return item


class _Outgoing(_Stream):
    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._unanswered.count -= 1
