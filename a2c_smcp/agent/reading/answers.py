"""Answers of computers as MCP's own results: in MCP's spelling, and checked, because a computer may send anything.

A list is an answer of many pages. `WholeList` joins them, and ends a list that does not end by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict
from urllib.parse import quote, unquote

from a2c_smcp.errors import AnswerTooLarge, SMCPError
from a2c_smcp.protocol import questions
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.operations import MCPList, MCPOperation
from a2c_smcp.protocol.questions import ELICITATION, InputRequest
from a2c_smcp.registry.calls.context import CannotAsk, OnInput, OnProgress

logger = logging.getLogger(__name__)

MCPResult: TypeAlias = dict[str, Any]
"""A result as MCP spells it, without fields of this protocol."""

MAX_PAGES = 500
MAX_LIST_BYTES = 16 * 1024 * 1024

_MCP_SPELLING = {"mime_type": "mimeType", "uri_template": "uriTemplate", "last_modified": "lastModified"}
_NOT_MCP = ("req_id",)


class WholeList:
    """Joins the pages of a list. Raises `SMCPError` for an invalid page, and for a list without an end."""

    def __init__(self, kind: MCPList) -> None:
        self.cursor: str | None = None
        self._kind = kind
        self._entries: list[dict[str, Any]] = []
        self._cursors: set[str] = set()
        self._pages: list[Mapping[str, Any]] = []
        self._size = 0

    def add(self, answer: object) -> bool:
        """Add a page. Return whether there is another, which begins at `cursor`."""
        found = answer.get(self._kind.listed) if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(found, list):
            raise SMCPError(f"the answer has no list of {self._kind.listed}")
        self._entries += self._valid(found)
        self._pages.append({field: answer[field] for field in ("ttlMs", "cacheScope", "_meta") if field in answer})
        self.cursor = self._next_cursor(answer)
        if self.cursor is None:
            return False
        self._size += len(dumps(found))
        if self.cursor in self._cursors or len(self._pages) >= MAX_PAGES:
            raise SMCPError(f"the list of {self._kind.listed} repeats a cursor or has too many pages")
        if self._size > MAX_LIST_BYTES:
            raise AnswerTooLarge(f"the list of {self._kind.listed} has more than {MAX_LIST_BYTES} bytes")
        self._cursors.add(self.cursor)
        return True

    def result(self) -> MCPResult:
        """MCP's result, with all entries. It may be kept as long as the page that may be kept the shortest."""
        found: MCPResult = {self._kind.mcp_field: self._entries}
        if isinstance(meta := self._pages[0].get("_meta"), dict):
            found["_meta"] = meta
        if ttl := min(map(ttl_of, self._pages)):
            scopes = {page.get("cacheScope") for page in self._pages}
            found |= {"ttlMs": ttl, "cacheScope": "public" if scopes == {"public"} else "private"}
        return found

    def _valid(self, found: list[Any]) -> list[dict[str, Any]]:
        """Leaves malformed entries out and keeps the others."""
        entries = [_in_mcp_spelling(each) for each in found if isinstance(each, dict)]
        valid = [each for each in entries if isinstance(each.get(self._kind.key), str)]
        if len(valid) < len(found):
            missing = len(found) - len(valid)
            logger.warning("%d of the %s of a computer are malformed and left out", missing, self._kind.listed)
        return valid

    def _next_cursor(self, answer: dict[str, Any]) -> str | None:
        cursor = answer.get("next_cursor") or answer.get("nextCursor")
        if cursor is None or cursor == "":
            return None
        if not isinstance(cursor, str):
            raise SMCPError(f"the cursor of the list of {self._kind.listed} is not a string")
        return cursor


def _in_mcp_spelling(entry: dict[str, Any]) -> dict[str, Any]:
    """The published 0.4 generation sends `mime_type` for `mimeType`, and so on."""
    spelled = {_MCP_SPELLING.get(key, key): value for key, value in entry.items()}
    if isinstance(annotations := spelled.get("annotations"), dict):
        spelled["annotations"] = {_MCP_SPELLING.get(key, key): value for key, value in annotations.items()}
    return spelled


def ttl_of(answer: Mapping[str, Any]) -> int:
    """For how many milliseconds an answer may be kept; 0 if it does not say."""
    ttl = answer.get("ttlMs")
    return max(ttl, 0) if type(ttl) is int else 0


def is_input_required(answer: Mapping[str, Any]) -> bool:
    """True if the MCP server asks something before it answers (MCP's `InputRequiredResult`)."""
    return questions.is_input_required(answer) or "inputRequests" in answer


def result_in(operation: MCPOperation, answer: object) -> MCPResult:
    """MCP's result of a request, or its `InputRequiredResult`. Raises `SMCPError` for one with malformed parts."""
    if not isinstance(answer, dict) or (operation.read(answer) != answer and not is_input_required(answer)):
        raise SMCPError(f"the answer is not a result of {operation.method}")
    return {field: value for field, value in answer.items() if field not in _NOT_MCP}


# URIs of resources that are not the only ones of their URI: `a2c://COMPUTER/SERVER/URI`.
#
# `URI` is the one that the MCP server knows, as it is, so a template stays one. The others are percent-encoded. Pages
# of apps keep their scheme, by which hosts know them: `ui://a2c/COMPUTER/SERVER/ui://…`. They always have this form:
# tools name them, so no computer may list a page in place of another one's.

APP_SCHEME = "ui://"
_SCHEME, _OF_APPS = "a2c://", "ui://a2c/"


class QualifiedURI(NamedTuple):
    """The parts of a qualified URI."""

    computer: str
    mcp_server: str
    uri: str

    @classmethod
    def parse(cls, uri: str) -> QualifiedURI | None:
        """`None` for any other URI."""
        scheme = _OF_APPS if uri.startswith(_OF_APPS) else _SCHEME
        computer, _, rest = uri.removeprefix(scheme).partition("/")
        mcp_server, _, own = rest.partition("/")
        is_one = uri.startswith(scheme) and computer and mcp_server and own and qualifying_scheme(own) == scheme
        return cls(unquote(computer), unquote(mcp_server), own) if is_one else None


def qualifying_scheme(uri: str) -> str:
    """The beginning of the qualified form of a URI."""
    return _OF_APPS if uri.startswith(APP_SCHEME) else _SCHEME


def qualified(uri: str, *places: str) -> str:
    """The URI of a resource of this computer and MCP server, which no other has."""
    return qualifying_scheme(uri) + "".join(f"{quote(place, safe='')}/" for place in places) + uri


def with_prefix(prefix: str, result: dict[str, Any]) -> dict[str, Any]:
    """MCP's result of reading a resource, whose contents have the URIs of its MCP server."""
    contents = result.get("contents")
    if not prefix or not isinstance(contents, list):
        return result
    return {**result, "contents": [_renamed(prefix, each) for each in contents]}


def _renamed(prefix: str, content: Any) -> Any:
    uri = content.get("uri") if isinstance(content, dict) else None
    return {**content, "uri": f"{prefix}{uri}"} if isinstance(uri, str) else content


# Requests whose MCP server asks something before it answers: a program is asked, and the request is sent again.
#
# Computers are asked for MCP's own way (WIRE §9, `questions: "result"`): their answer may be an `InputRequiredResult`.

MOST_ROUNDS = 64


class ReadOptions(TypedDict, total=False):
    """Options of a request for a resource or a prompt. All of them are optional.

    - `on_transfer(bytes, total, None)` is called while a large content is fetched.

    The others are for programs that speak MCP themselves:

    - `questions="result"`: what the MCP server asks first is returned as it came (MCP's `InputRequiredResult`). Ask
      again with `input_responses` (a result for each of its `inputRequests`, under the same key) and its
      `requestState` as `request_state`.
    - `client_capabilities` are what the computer declares to the MCP server for this request, in MCP's spelling.
    - `client` is the MCP client that the agent asks for, as `{"name": …, "version": …}`. The owner is shown its name.
    """

    questions: Literal["result"] | None
    input_responses: Mapping[str, Any] | None
    request_state: str | None
    client_capabilities: Mapping[str, Any] | None
    client: Mapping[str, str] | None
    on_transfer: OnProgress | None


Send: TypeAlias = Callable[[ReadOptions], Awaitable[MCPResult]]
"""Asks the computer, with these options. Returns MCP's result."""


async def answered(
    send: Send, options: ReadOptions, respond: OnInput | None, withdraw: Callable[[], object] = lambda: None
) -> MCPResult:
    """Return MCP's result, after `respond` has answered the questions. Raises `CannotAsk`, and what `send` raises.

    Without `respond` the questions are the result. `withdraw` is called if `send` has returned questions that stay
    without an answer.
    """
    for _ in range(MOST_ROUNDS):
        result = await send(options)
        if respond is None or not is_input_required(result):
            return result
        try:
            asked = questions.input_requests(result)
            given = await asyncio.gather(*(_response(respond, request) for request in asked.values()))
        except BaseException:
            withdraw()
            raise
        options = going_on(options, dict(zip(asked, given, strict=True)), result.get("requestState"))
    withdraw()
    raise CannotAsk(f"the MCP server asked in more than {MOST_ROUNDS} rounds", method=ELICITATION)


def options_for(client: Mapping[str, str] | None, capabilities: Mapping[str, Any]) -> ReadOptions:
    """Return the options of a request for an MCP client that can answer such questions."""
    options: ReadOptions = {"client": client} if client else {}
    if capabilities:
        options |= {"questions": "result", "client_capabilities": capabilities}
    return options


def going_on(options: ReadOptions, responses: Any, state: Any) -> ReadOptions:
    """The options of the request that follows, with the responses and the state."""
    following = options.copy()
    if isinstance(responses, Mapping):
        following["input_responses"] = responses
    if isinstance(state, str):
        following["request_state"] = state
    if len(following) > len(options):
        following["questions"] = "result"
    return following


async def _response(respond: OnInput, asked: InputRequest) -> dict[str, Any]:
    """An elicitation that is not answered is cancelled; the others have no such answer."""
    try:
        response: dict[str, Any] = await respond(asked)
    except CannotAsk:
        if asked.method != ELICITATION:
            raise
        return {"action": "cancel"}
    return response
