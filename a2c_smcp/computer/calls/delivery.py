"""How a result leaves the Computer: whole, with large contents by the side band, or as an error that says its size.

WIRE §9. An agent that says `blobs: true` fetches large contents in chunks, so they are always moved: binary of more
than 32 KiB, and, if the rest is still too large for one message, texts and the structured content. For an agent that
does not say so, binary is moved only if the result would be too large otherwise: one of the published 0.4 generation
can fetch it. Its texts are never moved; what is too large without them is an error (413).

What is moved is on disk, and is not in the result that is kept for duplicates: those get the same handles.
"""

from __future__ import annotations

from typing import Any

from a2c_smcp.computer.blobs.offers import Blobs
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.errors import AnswerTooLarge, NotPrivate
from a2c_smcp.mcp_host.message_limits import is_within, text_in
from a2c_smcp.protocol.codec import Written, dumps
from a2c_smcp.protocol.results import failed_call

__all__ = ["ResultDelivery"]

_HEAD_ROOM = 256
_JSON = "application/json"


class ResultDelivery:
    """`max_message` is the largest answer that can be sent, in bytes."""

    def __init__(self, blobs: Blobs, max_message: int) -> None:
        self._blobs = blobs
        self.limit(max_message)

    def limit(self, max_message: int) -> None:
        """Send no larger answers from now on."""
        self._max_message = max_message

    def fitting(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or, if it is too large to be sent, one that says so.

        A chunk that is sent as it is always fits.
        """
        if isinstance(answer.get("blob"), bytes):
            return answer
        written = answer if isinstance(answer, Written) else Written(answer, dumps(answer))
        size = _size(written.text)
        return written if self._fits(size) else failed_call(self._too_large(size))

    def refusal(self, call: IncomingCall, raw: dict[str, Any]) -> dict[str, Any] | None:
        """What is sent instead of a result that is too large whatever is moved."""
        if is_within(raw, self._max_message) or text_in(raw) - self._movable(call, raw) <= self._max_message:
            return None
        return failed_call(self._too_large(text_in(raw)))

    async def of(self, call: IncomingCall, result: dict[str, Any]) -> dict[str, Any]:
        """The result as it is sent. It is masked already."""
        content = result.get("content")
        if not isinstance(content, list):
            return self.fitting(result)
        if call.blobs:
            moved = await self._blobs.move_large(call.caller, content)
            result = result if moved is content else {**result, "content": moved}
        written = Written(result, dumps(result))
        if self._fits(_size(written.text)):
            return written
        if not call.blobs:
            return self.fitting({**result, "content": await self._blobs.move_large(call.caller, content)})
        return self.fitting(await self._without_texts(call, result))

    async def _without_texts(self, call: IncomingCall, result: dict[str, Any]) -> dict[str, Any]:
        result = {**result, "content": await self._blobs.move_large(call.caller, result["content"], texts=True)}
        if result.get("structuredContent") is None or is_within(result, self._max_message - _HEAD_ROOM):
            return result
        try:
            text = dumps(result["structuredContent"]).encode()
            mark = await self._blobs.spool(call.caller, text, _JSON)
        except (OSError, NotPrivate, AnswerTooLarge):
            return result
        meta = result.get("_meta")
        meta = {**meta, **mark.to_meta()} if isinstance(meta, dict) else mark.to_meta()
        return {**result, "structuredContent": {}, "_meta": meta}

    def _movable(self, call: IncomingCall, raw: dict[str, Any]) -> int:
        """The characters that need not be in the message."""
        content = raw.get("content")
        movable = self._blobs.movable(content, texts=call.blobs) if isinstance(content, list) else 0
        structured = raw.get("structuredContent")
        return movable + text_in(structured) if call.blobs and isinstance(structured, dict) else movable

    def _fits(self, size: int) -> bool:
        return size + _HEAD_ROOM <= self._max_message

    def _too_large(self, size: int) -> AnswerTooLarge:
        return AnswerTooLarge(f"{size} bytes, at most {self._max_message} can be sent", size=size)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
