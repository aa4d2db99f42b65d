"""A line out to a Server: dialled, used and lost. What is said over it is its user's business."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

import aiohttp
import socketio

from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError, Unavailable
from a2c_smcp.route import Credentials, Route, cause_of, dialling
from a2c_smcp.smcp import JOIN_OFFICE_EVENT, LEAVE_OFFICE_EVENT, SMCP_NAMESPACE
from a2c_smcp.types import Role
from a2c_smcp.wire import OnAck

__all__ = ["PATIENCE", "Credentials", "Line", "LineLost", "OnEvent", "Reconnect", "Route", "join", "leave"]

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""How long the Server itself may take to answer, in seconds."""

_FIRST_ANSWER = 5.0  # of a Server that is dialled; one that says nothing is dialled again
_FAREWELL = 1.0

OnEvent: TypeAlias = Callable[[str, Any], Awaitable[Any] | Any]
"""Given the name and the payload of an event; what it returns is acked."""


class LineLost(Unavailable):
    opening = "Connection lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """When to try again: seconds from the start of one attempt to the start of the next, doubling, with jitter.

    Attempts are never more than 5 s apart, so that after an outage of any length everybody is back within 10 s
    (WIRE §5); the jitter spreads those who were lost together.
    """

    first: float = 0.5
    longest: float = 4.0

    def delay(self, attempt: int) -> float:
        longest: float = min(self.first * 2 ** min(attempt, 30), self.longest)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311, not a secret

    def pause(self, attempt: int, spent: float) -> float:
        """How long to wait after an attempt that took so many seconds: not at all after a line that has lasted."""
        return max(0.0, self.delay(attempt) - spent)


class Line:
    """One connection, from dialling to its end: `async with Line(route, on_event) as line`.

    Entering raises what the Server refuses it with, or `Unavailable`. Events are handed over in the order in which
    they came; what one waits for, it waits for in a task of its own.
    """

    def __init__(self, route: Route, on_event: OnEvent) -> None:
        self.lost = asyncio.Event()
        self._route = route
        self._on_event = on_event
        self._refusal: SMCPError | None = None
        self._dialling: asyncio.Timeout | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._handling: set[asyncio.Task[Any]] = set()
        self._leaving = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._leaving:
            client = dialling(self._route, self._on_packet, self._on_loss, self._on_answer)
            self._client = await self._leaving.enter_async_context(client)
            self._leaving.push_async_callback(self._end)
            self._client.on("connect_error", self._on_refusal, namespace=SMCP_NAMESPACE)
            self._client.on("disconnect", self._on_loss, namespace=SMCP_NAMESPACE)
            self._client.on("*", self._handle, namespace=SMCP_NAMESPACE)
            await self._dial()
            self._leaving = self._leaving.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leaving.aclose()

    async def ask(
        self, event: str, data: Mapping[str, Any], timeout: float | None, then: Callable[[Any], Any] | None = None
    ) -> Any:
        """The answer; several ack arguments come as a tuple. Raises `LineLost` as soon as there will be none.

        `then` makes something of the answer before any later event is looked at.
        """
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_ack(*arguments: Any) -> None:
            if answered.done():
                return
            answer = arguments[0] if len(arguments) == 1 else arguments or None
            if isinstance(answer, BadRequest):
                answered.set_exception(SMCPError(f"the answer to {event} cannot be read, {answer.message}"))
                return
            try:
                answered.set_result(then(answer) if then else answer)
            except Exception as error:  # of whoever asks, who is told
                answered.set_exception(error)

        self._waiting.add(answered)
        try:
            async with asyncio.timeout(timeout):
                await self._emit(event, data, on_ack)
                return await answered
        except TimeoutError:
            raise CallTimeout(f"{event} was not answered within {timeout:g} s") from None
        finally:
            answered.cancel()
            self._waiting.discard(answered)

    async def _emit(self, event: str, data: Mapping[str, Any], on_ack: OnAck) -> None:
        if self.lost.is_set():
            raise LineLost(outcome="not_run")
        try:
            await self._send(event, data, on_ack)
        except (socketio.exceptions.SocketIOError, OSError):
            self._on_loss()
            raise LineLost from None

    async def _send(self, event: str, data: Mapping[str, Any], on_ack: OnAck) -> None:
        if wire := self._client.wire:
            await wire.emit(event, data, on_ack)
        else:
            await self._client.emit(event, data, namespace=SMCP_NAMESPACE, callback=on_ack)

    async def _dial(self) -> None:
        task = asyncio.current_task()
        assert task
        cancels = task.cancelling()
        asked = self._route.credentials()
        shown = await asked if inspect.isawaitable(asked) else asked
        try:
            async with asyncio.timeout(_FIRST_ANSWER) as self._dialling:
                await self._client.connect(
                    self._route.versioned,
                    auth=dict(shown.auth) if shown.auth is not None else None,
                    headers=dict(shown.headers),
                    namespaces=[SMCP_NAMESPACE],
                    socketio_path=self._route.socket_path,
                    wait_timeout=2 * PATIENCE,
                )
        except TimeoutError:
            raise self._unreachable("timed out") from None
        except (socketio.exceptions.SocketIOError, aiohttp.ClientError, OSError) as error:
            why = "the connection was lost before it was complete" if self.lost.is_set() else cause_of(error)
            raise (self._refusal or self._unreachable(why)) from None
        finally:
            self._dialling = None
        if task.cancelling() > cancels:  # one that came together with the answer was lost in asyncio.wait_for (3.11)
            raise asyncio.CancelledError

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(f"{self._route.place} cannot be reached, {why}")

    def _on_answer(self) -> None:
        """A Server that has answered once is there, and may take its time for the rest."""
        if self._dialling and not self._dialling.expired():
            self._dialling.reschedule(asyncio.get_running_loop().time() + PATIENCE)

    def _on_refusal(self, reason: Any) -> None:
        if isinstance(reason, dict):
            self._refusal = SMCPError.from_wire(reason.get("data", reason)) or Unavailable(
                f"{self._route.place} refuses, {reason.get('message', reason)}"
            )

    def _on_loss(self, *_: Any) -> None:
        self.lost.set()
        for answered in self._waiting:
            if not answered.done():
                answered.set_exception(LineLost())

    async def _handle(self, event: str | BadRequest, *arguments: Any) -> Any:
        """The library's way, for what does not come over the wire."""
        answer = self._heard(event, *arguments)
        if not inspect.isawaitable(answer):
            return answer
        task = asyncio.current_task()
        assert task
        self._handling.add(task)
        try:
            return await answer
        finally:
            self._handling.discard(task)

    def _on_packet(self, number: int | None, content: list[Any]) -> None:
        try:
            answer = self._heard(*content)
        except Exception:
            logger.exception("an event could not be handled")
            return
        if number is not None or inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._answer(number, answer))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    def _heard(self, event: str | BadRequest, *arguments: Any) -> Any:
        if isinstance(event, BadRequest):
            return event.to_wire()
        return self._on_event(event, arguments[0] if arguments else None)

    async def _answer(self, number: int | None, answer: Any) -> None:
        try:
            answer = await answer if inspect.isawaitable(answer) else answer
            if number is not None and (wire := self._client.wire):
                await wire.ack(number, answer)
        except OSError:
            return  # the line is lost, and whoever asked will ask again
        except Exception:
            logger.exception("an event was not answered")

    async def _end(self) -> None:
        """Whoever still works for a connection that is gone stops."""
        with suppress(Exception):
            async with asyncio.timeout(_FAREWELL):
                await self._client.disconnect()
        self._client.forget()
        self._on_loss()
        for task in self._handling:
            task.cancel()
        await asyncio.gather(*self._handling, return_exceptions=True)


async def join(line: Line, role: Role, name: str, office: str, instance: str) -> None:
    """Takes a seat in an office, or takes up the one that this instance has left. Raises what it is refused with."""
    request = {"role": role, "name": name, "office_id": office, "instance": instance}
    _require_yes(await line.ask(JOIN_OFFICE_EVENT, request, PATIENCE))


async def leave(line: Line, office: str, patience: float = PATIENCE) -> None:
    """Gives up a seat. Raises what that is refused with."""
    _require_yes(await line.ask(LEAVE_OFFICE_EVENT, {"office_id": office}, patience))


def _require_yes(answer: Any) -> None:
    accepted, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (False, f"500 {answer}")
    if not accepted:
        raise SMCPError.from_text(reason)
