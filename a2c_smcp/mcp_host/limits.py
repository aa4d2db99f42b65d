"""Every delay and limit of sessions with MCP servers and of their supervision, and how a rate is limited."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import Any, Literal

import msgspec
import orjson
from mcp_types import INTERNAL_ERROR

from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused
from a2c_smcp.protocol.operations import MCP_LISTS

# Limits on the size of a message of an MCP server, and the error answer that replaces a message over a limit.
#
# A message is a line of a pipe, the body of an HTTP response or one event of a stream. It is limited in bytes, after
# decompression, and in JSON values, because a few bytes (`{},`) can become many objects. A message that is over a limit
# is neither parsed nor kept. An error answer replaces it, so that the request it answers fails at once and the
# connection goes on. The id of that request is read from the beginning or the end of the message.
#
# A long list of tools, resources or prompts is the exception: before it is parsed it is cut, to more items than are
# ever used. Scanning a message costs a twentieth of parsing it, and it holds the event loop as parsing does.

MAX_BYTES = 16 * 1024 * 1024
"""WIRE §6: four times what can be sent on to an agent."""
MAX_VALUES = 300_000
"""The SDK's models parse so many in a sixth of a second, and hold the event loop as long."""
MAX_ITEMS = 2000
"""Items that are kept of a list in a large message."""
LARGE = 1024 * 1024
"""Bytes. Lists in smaller messages are not cut."""
MAX_RESULT_VALUES = 250_000
"""Values in a result for an agent: masking secrets visits each of them."""
MAX_ERROR_DATA = 64 * 1024
"""Bytes of the `data` of an error answer that are kept."""
PEEK = 1024
"""Bytes that are kept of the beginning and of the end of a message that is too large."""

_SAID = "the server's answer exceeded the {} limit"
_OVER_LIMIT = re.compile(re.escape(_SAID).replace(r"\{\}", r"\d+ (?:byte|value)"))
_ID = r'"id"\s*:\s*(?P<id>"(?:[^"\\]|\\.){0,128}"|\d{1,18})'
_AT_BEGINNING = re.compile(rf'\s*{{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?{_ID}\s*,\s*"(?:result|error)"')
_AT_END = re.compile(rf',\s*{_ID}\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?}}\s*$')


def over_bytes(limit: int) -> str:
    return _SAID.format(f"{limit} byte")


def over_values(limit: int = MAX_VALUES) -> str:
    return _SAID.format(f"{limit} value")


def refused(code: int, text: str, data: Any = None) -> RequestRefused | OversizedAnswer:
    """Return the failure that an error answer stands for. Large `data` is left out."""
    if match := _OVER_LIMIT.search(text):  # one of our own error answers
        return OversizedAnswer(match[0])
    details = {} if data is None or not is_within({"data": data}, MAX_ERROR_DATA) else {"mcp_data": data}
    return RequestRefused(text, mcp_code=code, mcp_message=text, **details)


def refusal(reason: str, beginning: str, end: str = "") -> str:
    """Return the error answer that replaces a message, as JSON; empty if the id of its request is not found."""
    match = _AT_BEGINNING.match(beginning) or _AT_END.search(end)
    return refusal_of(json.loads(match["id"]), reason) if match else ""


def refusal_of(request_id: str | int, reason: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": INTERNAL_ERROR, "message": reason}})


class _Message(msgspec.Struct):
    id: str | int
    result: dict[str, msgspec.Raw]


_message = msgspec.json.Decoder(_Message)
_items = msgspec.json.Decoder(list[msgspec.Raw])


def cut_listing(text: str | bytes) -> bytes | None:
    """Return the answer with the first `MAX_ITEMS` of its list; `None` if it has no list that is longer."""
    try:
        message = _message.decode(text)
        cut = {}
        for name in ("tools", *(row.mcp_field for row in MCP_LISTS)):
            if name in message.result and len(items := _items.decode(message.result[name])) > MAX_ITEMS:
                cut[name] = items[:MAX_ITEMS]
    except (ValueError, RecursionError):
        return None
    answer = {"jsonrpc": "2.0", "id": message.id, "result": message.result | cut}
    return msgspec.json.encode(answer) if cut else None


def has_too_many_values(text: str) -> bool:
    """Count commas and brackets outside of strings, without parsing."""
    if len(text) <= MAX_VALUES or _separators(text) <= MAX_VALUES:
        return False
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    if plain.count('"') > 4 * MAX_VALUES:  # each value may have a key
        return True
    return _separators("".join(plain.split('"')[::2])) > MAX_VALUES


def _separators(text: str) -> int:
    return sum(map(text.count, ",{["))


def check_result(result: dict[str, Any]) -> None:
    """Raise `OversizedAnswer` for a result with too many values."""
    if is_within(result, MAX_RESULT_VALUES):
        return
    count = 0
    for level in _levels(result):
        count += sum(map(len, level))
        if count > MAX_RESULT_VALUES:
            raise OversizedAnswer(over_values(MAX_RESULT_VALUES))


def is_within(result: dict[str, Any], most: int) -> bool:
    """True if its JSON has at most so many bytes, and therefore no more values or characters."""
    try:
        return len(orjson.dumps(result)) <= most
    except TypeError:  # a huge number, a lone surrogate
        return False


def text_in(result: dict[str, Any]) -> int:
    """Return the number of characters in its texts and keys: its JSON has at least as many bytes."""
    return sum(
        len(text)
        for level in _levels(result)
        for node in level
        for text in (chain(node, node.values()) if isinstance(node, dict) else node)
        if isinstance(text, str)
    )


def _levels(result: dict[str, Any]) -> Iterator[list[dict[str, Any] | list[Any]]]:
    """Yield the objects and arrays of each depth together."""
    level: list[Any] = [result]
    while level:
        yield level
        inner = chain.from_iterable(node.values() if isinstance(node, dict) else node for node in level)
        level = [child for child in inner if isinstance(child, dict | list)]


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Delays in seconds, limits in seconds, bytes or numbers.

    A server that is starting counts among those `starting_at_once` for `start_turn` seconds at the most. `desktop`
    holds for servers whose configuration does not set it. A server that fails `restarts` times within
    `restarts_within` seconds is `failed`, and started again after `failed_pause`; a call of a tool waits at most
    `restart_wait` for one that is restarted after a failure. A list is kept for `shortest_ttl` at least, also if its
    server allows less. `request_limit` bounds each request that is not a call of a tool. A server that nobody uses is
    stopped after `idle_stop` seconds, or after `on_call_idle` if it starts on call; a question with which it has ended
    a request counts as use for `question_limit` seconds.
    """

    starting_at_once: int = 8
    start_turn: float = 2.0
    start_limit: float = 30.0
    request_limit: float = inf
    probe_limit: float = 10.0
    farewell_limit: float = 3.0
    stop_limit: float = 4.8

    listing_limit: float = 10.0
    listing_pages: int = 100
    shortest_ttl: float = 10.0
    read_limit: float = 10.0
    notice_pause: float = 0.1
    listen_again: float = 1.0

    largest_message: int = MAX_BYTES

    call_cap: float = 3600.0
    calls_at_once: int = 32
    timeouts_in_a_row: int = 3
    health_limit: float = 5.0

    first_pause: float = 1.0
    longest_pause: float = 60.0
    jitter: float = 0.2
    restarts: int = 5
    restarts_within: float = 60.0
    failed_pause: float = 300.0
    restart_wait: float = 5.0

    sign_in_limit: float = 300.0
    subscription_limit: float = 900.0

    idle_stop: float | None = None
    on_call_idle: float = 600.0
    question_limit: float = 600.0
    desktop: Literal["subscribed", "any"] = "subscribed"

    def with_timeout(self, seconds: float) -> HostLimits:
        """Return the limits for a server whose configuration has this `timeout`, which may extend its start."""
        return replace(
            self,
            request_limit=seconds,
            start_limit=max(self.start_limit, seconds),
            probe_limit=min(self.probe_limit, seconds),
        )


class Rate:
    """At most `most` a second on average, and `at_once`, by default as many, at once."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, at_once: int | None = None) -> None:
        self._most, self._at_once = most, at_once or most
        self._clock = clock
        self._left = float(self._at_once)
        self._at = clock()

    def allows(self) -> bool:
        """Count one more. Return False if it is too many."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self._most)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
