"""A webhook that notifies a team of requests and questions: signed, and retried.

The receiver approves nothing, whatever it answers: answers are given in the console or at the terminal. A receiver that
is slow or away delays no call. A body is signed with the time at which it is sent, so that a receiver can reject a body
that others have made, changed or kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

import aiohttp

from a2c_smcp.computer.consent.approval import PendingApproval, PendingApprovals, PendingQuestion, PendingQuestions
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.escaping import one_line, shown_caller

logger = logging.getLogger(__name__)

TIMESTAMP, SIGNATURE = "X-A2C-Timestamp", "X-A2C-Signature"
_ATTEMPTS, _FIRST_PAUSE, _LONGEST_PAUSE = 8, 1.0, 60.0
_TIMEOUT = 10.0
_AT_ONCE, _MOST_WAITING = 8, 500
_LARGEST_DESCRIPTION = 1024
_LARGEST_ARGUMENTS = 16 * 1024
"""Characters of arguments that are sent; longer ones are cut."""


def signature_of(secret: bytes, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC of the timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Webhook:
    """`console` is the address of the console that the receiver may show; it opens nothing without a session.

    `first_pause` is the time before the second attempt, in seconds; it doubles from attempt to attempt.
    """

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        computer: str,
        mask: Mask,
        console: Callable[[], str] = lambda: "",
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        self._url, self._secret, self._first_pause = url, secret, first_pause
        self._computer, self._mask, self._console = computer, mask, console
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._tasks = OwnedTasks()
        self._waiting = 0

    def follow(self, approvals: PendingApprovals, questions: PendingQuestions) -> None:
        approvals.on_added.append(lambda new: self._tell("approval.requested", new.number, self._approval(new)))
        approvals.on_removed.append(lambda old: self._tell("approval.ended", old.number, _end(old)))
        questions.on_added.append(lambda new: self._tell("question.asked", new.number, self._question(new)))
        questions.on_removed.append(lambda old: self._tell("question.ended", old.number, _end(old)))

    async def close(self) -> None:
        """Wait a moment for messages on their way, and end."""
        await self._tasks.finish(1.0)
        await self._tasks.close()

    def _approval(self, pending: PendingApproval) -> dict[str, Any]:
        wanted = pending.request
        text = one_line(wanted.arguments)
        cut = len(text) > _LARGEST_ARGUMENTS
        return {
            "agent": wanted.caller.who,
            "office": wanted.caller.office,
            "server": wanted.server,
            "tool": wanted.name,
            "arguments": one_line(wanted.arguments, _LARGEST_ARGUMENTS) if cut else wanted.arguments,
            "arguments_are_cut": cut,
            "description": one_line(wanted.risk.description, _LARGEST_DESCRIPTION)[1:-1],
            "effects": [effect._asdict() for effect in wanted.risk.effects],
            "unusual": [
                {**unusual._asdict(), "value": one_line(unusual.value, _LARGEST_DESCRIPTION)[1:-1]}
                for unusual in wanted.risk.unusual
            ],
            "tool_has_changed": bool(wanted.changed),
            "rule": wanted.rule,
            "expires": wanted.until,
        }

    def _question(self, pending: PendingQuestion) -> dict[str, Any]:
        """The fields of a form are not sent; the console shows them."""
        asked = pending.question
        return {
            "agent": shown_caller(asked.agent, asked.client),
            "office": asked.office,
            "server": asked.server,
            "tool": asked.tool,
            "message": self._mask.text(asked.message, asked.server),
            "mode": asked.mode,
            "expires": asked.until,
        }

    def _tell(self, kind: str, number: int, about: dict[str, Any]) -> None:
        if self._waiting >= _MOST_WAITING:
            logger.warning("the webhook is not told of #%d: too much waits for it already", number)
            return
        event = {
            "id": str(uuid.uuid4()),
            "type": kind,
            "time": time.time(),
            "computer": self._computer,
            "number": number,
            "console": self._console(),
            **about,
        }
        # ASCII: arguments may hold lone surrogates, which UTF-8 cannot hold, and integers of any size.
        body = json.dumps(event, default=repr, separators=(",", ":")).encode("ascii")
        self._waiting += 1
        self._tasks.spawn(self._deliver(kind, number, body))

    async def _deliver(self, kind: str, number: int, body: bytes) -> None:
        try:
            pause, problem = self._first_pause, ""
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(min(pause, _LONGEST_PAUSE))
                    pause *= 2
                async with self._turns:
                    problem = await self._attempt(body)
                if not problem:
                    return
            logger.warning("the webhook was not told of #%d (%s): %s", number, kind, problem)
        finally:
            self._waiting -= 1

    async def _attempt(self, body: bytes) -> str:
        """Send a body once. Returns the problem; empty if it arrived."""
        timestamp = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            TIMESTAMP: timestamp,
            SIGNATURE: signature_of(self._secret, timestamp, body),
        }
        limit = aiohttp.ClientTimeout(total=_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as client,
                client.post(self._url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                return "" if 200 <= answer.status < 300 else f"it answers {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return type(error).__name__  # its words may hold the URL, which may hold a secret


def _end(pending: PendingApproval | PendingQuestion) -> dict[str, Any]:
    """The end of a request, without its answer."""
    if not pending.answer.done() or pending.answer.cancelled():
        return {"outcome": "withdrawn", "where": ""}
    return {"outcome": "answered", "where": pending.where or "terminal"}
