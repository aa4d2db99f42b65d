"""Contents of resources, messages of prompts, completions: checked, masked, and sent whole, by the side band or not.

Large binary contents always go by the side band (WIRE §9). Texts do so only for an agent that asks with `blobs: true`,
and only if the answer would be too large otherwise. What is too large all the same is an error that says its size.
"""

from __future__ import annotations

from typing import Any

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.offers import Blobs
from a2c_smcp.computer.secrets import READ, Mask
from a2c_smcp.errors import AnswerTooLarge
from a2c_smcp.mcp_host.failures import ServerFailure
from a2c_smcp.mcp_host.message_limits import is_within, text_in

__all__ = ["ReadContents"]

_HEAD_ROOM = 1024
_MOST_VALUES = 100


class ReadContents:
    """`max_message` is the largest answer that can be sent, in bytes."""

    def __init__(self, blobs: Blobs, mask: Mask, max_message: int) -> None:
        self._blobs = blobs
        self._mask = mask
        self.limit(max_message)

    def limit(self, max_message: int) -> None:
        """Send no larger answers from now on."""
        self._max_message = max_message

    async def resource(self, caller: Caller, server: str, raw: dict[str, Any], *, texts: bool) -> dict[str, Any]:
        """MCP's `ReadResourceResult`. Raises `ServerFailure` if it is not valid, or `AnswerTooLarge`."""
        contents = _objects(raw, "contents")
        answer = await self._masked({**raw, "contents": contents}, contents, server, texts=texts)
        contents = await self._blobs.move_large(caller, answer["contents"])
        if texts and not self._fits(answer | {"contents": contents}):
            contents = await self._blobs.move_large(caller, contents, texts=True)
        return answer | {"contents": contents}

    async def prompt(self, caller: Caller, server: str, raw: dict[str, Any], *, texts: bool) -> dict[str, Any]:
        """MCP's `GetPromptResult`. Raises as `resource` does."""
        messages = [each for each in _objects(raw, "messages") if isinstance(each.get("content"), dict)]
        items = [each["content"] for each in messages]
        answer = await self._masked({**raw, "messages": messages}, items, server, texts=texts)
        messages = answer["messages"]
        items = await self._blobs.move_large(caller, [each["content"] for each in messages])
        if texts and not self._fits(answer | {"messages": _with_contents(messages, items)}):
            items = await self._blobs.move_large(caller, items, texts=True)
        return answer | {"messages": _with_contents(messages, items)}

    async def completion(self, server: str, raw: dict[str, Any]) -> dict[str, Any]:
        """MCP's `CompleteResult`, with as many values as MCP allows. Raises `ServerFailure` if it is not valid."""
        completion = raw.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        if not isinstance(completion, dict) or not isinstance(values, list):
            raise ServerFailure("its answer is not a completion")
        kept = [each for each in values if isinstance(each, str)][:_MOST_VALUES]
        cut = {"hasMore": True} if len(kept) < len(values) else {}
        return await self._mask.answer({**raw, "completion": {**completion, "values": kept, **cut}}, READ, server)

    async def _masked(
        self, raw: dict[str, Any], items: list[dict[str, Any]], server: str, *, texts: bool
    ) -> dict[str, Any]:
        """The answer without secrets. No time is spent on one that is too large whatever is moved."""
        if not is_within(raw, self._max_message):
            size = text_in(raw)
            if size - self._blobs.movable(items, texts=texts) > self._max_message:
                raise AnswerTooLarge(f"{size} bytes, at most {self._max_message} can be sent", size=size)
        return await self._mask.answer(raw, READ, server)

    def _fits(self, answer: dict[str, Any]) -> bool:
        return is_within(answer, self._max_message - _HEAD_ROOM)


def _objects(raw: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The objects in a list of MCP's answer; what else is in it is left out."""
    found = raw.get(field)
    if not isinstance(found, list):
        raise ServerFailure(f"its answer has no list of {field}")
    return [each for each in found if isinstance(each, dict)]


def _with_contents(messages: list[dict[str, Any]], items: list[Any]) -> list[dict[str, Any]]:
    return [{**message, "content": item} for message, item in zip(messages, items, strict=True)]
