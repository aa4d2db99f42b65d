"""Answers of computers as MCP's own results: in MCP's spelling, and checked, because a computer may send anything.

A list is an answer of many pages. `WholeList` joins them, and ends a list that does not end by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from a2c_smcp import mcp_events, published_events
from a2c_smcp.errors import AnswerTooLarge, SMCPError
from a2c_smcp.protocol.codec import dumps

__all__ = [
    "PROMPTS",
    "RESOURCES",
    "TEMPLATES",
    "ListKind",
    "MCPResult",
    "WholeList",
    "completion_in",
    "contents_in",
    "is_input_required",
    "messages_in",
    "servers_in",
    "ttl_of",
]

logger = logging.getLogger(__name__)

MCPResult: TypeAlias = dict[str, Any]
"""A result as MCP spells it, without fields of this protocol."""

MAX_PAGES = 500
MAX_LIST_BYTES = 16 * 1024 * 1024

_MCP_SPELLING = {"mime_type": "mimeType", "uri_template": "uriTemplate", "last_modified": "lastModified"}
_NOT_MCP = ("req_id",)


class ListKind(NamedTuple):
    """A list of MCP: the event that asks for it, its field in the answer and in MCP, and the key of its entries."""

    event: str
    field: str
    mcp_field: str
    key: str


RESOURCES = ListKind(published_events.GET_RESOURCES_EVENT, "resources", "resources", "uri")
TEMPLATES = ListKind(mcp_events.GET_RESOURCE_TEMPLATES_EVENT, "resource_templates", "resourceTemplates", "uriTemplate")
PROMPTS = ListKind(mcp_events.GET_PROMPTS_EVENT, "prompts", "prompts", "name")


class WholeList:
    """A list, page by page. It raises `SMCPError` for an invalid page, and for a list without an end."""

    def __init__(self, kind: ListKind) -> None:
        self.cursor: str | None = None
        self._kind = kind
        self._entries: list[dict[str, Any]] = []
        self._cursors: set[str] = set()
        self._pages: list[Mapping[str, Any]] = []
        self._size = 0

    def add(self, answer: object) -> bool:
        """Add a page. Return whether there is another, which begins at `cursor`."""
        found = answer.get(self._kind.field) if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(found, list):
            raise SMCPError(f"the answer has no list of {self._kind.field}")
        self._entries += self._valid(found)
        self._pages.append({field: answer[field] for field in ("ttlMs", "cacheScope", "_meta") if field in answer})
        self.cursor = self._next_cursor(answer)
        if self.cursor is None:
            return False
        self._size += len(dumps(found))
        if self.cursor in self._cursors or len(self._pages) >= MAX_PAGES:
            raise SMCPError(f"the list of {self._kind.field} has no end")
        if self._size > MAX_LIST_BYTES:
            raise AnswerTooLarge(f"the list of {self._kind.field} has more than {MAX_LIST_BYTES} bytes")
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
        """One malformed entry hides no other."""
        entries = [_in_mcp_spelling(each) for each in found if isinstance(each, dict)]
        valid = [each for each in entries if isinstance(each.get(self._kind.key), str)]
        if len(valid) < len(found):
            missing = len(found) - len(valid)
            logger.warning("%d of the %s of a computer are malformed and left out", missing, self._kind.field)
        return valid

    def _next_cursor(self, answer: dict[str, Any]) -> str | None:
        cursor = answer.get("next_cursor") or answer.get("nextCursor")
        if cursor is None or cursor == "":
            return None
        if not isinstance(cursor, str):
            raise SMCPError(f"the cursor of the list of {self._kind.field} is not a string")
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
    """Whether the MCP server asks something before it answers (MCP's `InputRequiredResult`)."""
    return answer.get("resultType") == "input_required" or "inputRequests" in answer


def contents_in(answer: object) -> MCPResult:
    """MCP's `ReadResourceResult`, or its `InputRequiredResult`."""
    return _result(answer, "contents", "the answer has no list of contents")


def messages_in(answer: object) -> MCPResult:
    """MCP's `GetPromptResult`, or its `InputRequiredResult`."""
    return _result(answer, "messages", "the answer has no list of messages")


def completion_in(answer: object) -> MCPResult:
    """MCP's `CompleteResult`."""
    completion = answer.get("completion") if isinstance(answer, dict) else None
    values = completion.get("values") if isinstance(completion, dict) else None
    if (
        not isinstance(answer, dict)
        or not isinstance(values, list)
        or not all(isinstance(each, str) for each in values)
    ):
        raise SMCPError("the answer is not a completion")
    return _without_ours(answer)


def servers_in(answer: object) -> list[mcp_events.ServerInfo]:
    found = answer.get("servers") if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise SMCPError("the answer has no list of servers")
    valid = [each for each in found if isinstance(each, dict) and isinstance(each.get("name"), str)]
    return cast(list[mcp_events.ServerInfo], valid)  # its other fields are as they came


def _result(answer: object, field: str, problem: str) -> MCPResult:
    if not isinstance(answer, dict):
        raise SMCPError(problem)
    found = answer.get(field)
    is_whole = isinstance(found, list) and all(isinstance(each, dict) for each in found)
    if not is_whole and not is_input_required(answer):
        raise SMCPError(problem)
    return _without_ours(answer)


def _without_ours(answer: Mapping[str, Any]) -> MCPResult:
    return {field: value for field, value in answer.items() if field not in _NOT_MCP}
