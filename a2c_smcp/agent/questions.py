"""The questions of one tool call: each is put to the agent's callback once, and its answer is sent to the computer.

A question arrives by `notify:tell_question`, in the answer to `client:get_questions` after a reconnect, or both ways,
in any order. `_seen` has the ids of all that arrived, so that the callback gets each of them once. `_open` has a task
for each question that is not answered yet. The task waits for its turn (one question of a call at a time), calls the
callback, and sends the answer. It ends early when the computer withdraws the question (`notify:tell_question_ended`)
and when the call ends in any way: then the callback is cancelled if it is async, and its answer is not sent.

The answer is sent until it is acked. That is safe, because the same answer again is acked as the first one (WIRE §9).
400 means that the content does not fit the form, and the question stays open: the callback is called again with the
`problem`. 404 and 410 mean that the question is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from a2c_smcp.agent.events import Invoke
from a2c_smcp.errors import BadRequest, SMCPError, UnsupportedEvent
from a2c_smcp.loops import is_cancelled
from a2c_smcp.protocol.questions import Answer, GivenAnswer, Question

__all__ = ["CallQuestions", "OnQuestion", "SendAnswer"]

logger = logging.getLogger(__name__)

OnQuestion: TypeAlias = Callable[[Question], GivenAnswer | Awaitable[GivenAnswer]]
"""Answers a question: with an `Answer`, with the content of the form, or with `None`, which cancels."""

SendAnswer: TypeAlias = Callable[[Question, Answer], Awaitable[None]]

_MAX_OPEN = 32
_MAX_ASKED = 1000
"""Questions of one call, at a time and in all: more are ignored."""

_MAX_REFUSED = 5
_PAUSES = (0.5, 1.0, 2.0, 4.0)
_OVER = (404, 410)


class CallQuestions:
    """Puts the questions of one call to a callback. Used in one event loop."""

    def __init__(self, callback: OnQuestion, invoke: Invoke, send: SendAnswer) -> None:
        self._callback, self._invoke, self._send = callback, invoke, send
        self._turn = asyncio.Lock()
        self._seen: set[str] = set()
        self._open: dict[str, asyncio.Task[None]] = {}

    def put(self, question: Question) -> None:
        """Ask the callback, unless it was asked before."""
        question_id = question.question_id
        if question_id in self._seen:
            return
        if len(self._open) >= _MAX_OPEN or len(self._seen) >= _MAX_ASKED:
            logger.warning("a question of %r is ignored: there are too many", question.computer)
            return
        self._seen.add(question_id)
        task = self._open[question_id] = asyncio.get_running_loop().create_task(self._ask(question))
        task.add_done_callback(lambda done: self._ended(question_id, done))

    def withdraw(self, question_id: str) -> None:
        """The computer no longer wants an answer."""
        if task := self._open.get(question_id):
            task.cancel()

    def close(self) -> None:
        """The call has ended."""
        for task in self._open.values():
            task.cancel()

    def _ended(self, question_id: str, task: asyncio.Task[None]) -> None:
        self._open.pop(question_id, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a question was not answered", exc_info=error)

    async def _ask(self, question: Question) -> None:
        async with self._turn:
            for _ in range(_MAX_REFUSED):
                problem = await self._deliver(question, await self._answer(question))
                if problem is None:
                    return
                question = replace(question, problem=problem)
            logger.warning("%d answers to a question of %r did not fit", _MAX_REFUSED, question.computer)
            await self._deliver(question, Answer("cancel"))

    async def _answer(self, question: Question) -> Answer:
        """What the callback answers. One that fails cancels the question."""
        try:
            return Answer.of(await self._invoke(self._callback, question))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            logger.warning("on_question was cancelled")
        except Exception:
            logger.exception("on_question failed")
        return Answer("cancel")

    async def _deliver(self, question: Question, answer: Answer) -> str | None:
        """Send an answer until the computer has it. Return why it does not fit, or `None`."""
        error: SMCPError | None = None
        for pause in (0.0, *_PAUSES):
            await asyncio.sleep(pause)
            try:
                await self._send(question, answer)
            except UnsupportedEvent as unsupported:
                error = unsupported
                break
            except BadRequest as refusal:
                return refusal.about
            except SMCPError as failure:
                error = failure
                if failure.code in _OVER:
                    break
            else:
                return None
        logger.warning("the answer to a question of %r was not taken: %s", question.computer, error)
        return None
