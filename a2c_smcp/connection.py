"""A client's connection to a Server: dial, ask, hear, lose it. What is said over it is its user's business."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import aiohttp

from a2c_smcp.endpoint import Credentials, Endpoint, cause_of
from a2c_smcp.engine import events
from a2c_smcp.engine.attachments import attach, detach
from a2c_smcp.engine.packets import Attachment, Malformed, ack_packet, event_packet, payload_size
from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError, TooLarge, Unavailable
from a2c_smcp.protocol import codec
from a2c_smcp.smcp import JOIN_OFFICE_EVENT, LEAVE_OFFICE_EVENT, SMCP_NAMESPACE
from a2c_smcp.transports import Dial, NotOpened, open_transport
from a2c_smcp.types import Role

__all__ = ["PATIENCE", "Connection", "ConnectionLost", "Later", "OnEvent", "Reconnect", "join", "leave"]

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""How long the Server itself may take to answer, in seconds."""

_FIRST_ANSWER = 5.0  # of a Server that is dialled; one that says nothing is dialled again
_FAREWELL = 1.0
_LARGEST_SENT = 8 * 1024 * 1024 - 1024  # bytes
_NAMESPACE = SMCP_NAMESPACE.encode()
_NONE_WILL_COME = object()

OnEvent: TypeAlias = Callable[[str, Any], "Later | Awaitable[Any] | Any"]
"""Given the name and the payload of an event; what it returns, or gives later, is acked."""


class Later(NamedTuple):
    """An answer without a task that waits for it: `begin` is given what to call with it. It does not raise."""

    begin: Callable[[Callable[[Any], None]], None]


class ConnectionLost(Unavailable):
    title = "Connection lost"


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
        """How long to wait after an attempt that took so many seconds: not at all after one that has lasted."""
        return max(0.0, self.delay(attempt) - spent)


class Connection:
    """One connection, from dialling to its end: `async with Connection(endpoint, on_event) as connection`.

    Entering raises what the Server refuses it with, or `Unavailable`. Events are handed over in the order in which
    they came; an answer that has to be awaited is awaited in a task of its own.
    """

    def __init__(self, endpoint: Endpoint, on_event: OnEvent) -> None:
        self.lost = asyncio.Event()
        self._endpoint = endpoint
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[SMCPError | None] = self._loop.create_future()  # or the refusal
        self._waiting: dict[int, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._leaving = AsyncExitStack()
        self._reactions: dict[type, Callable[[Any], None]] = {
            events.Event: self._on_packet,
            events.Ack: self._on_ack,
            events.Faulty: self._on_fault,
            events.Connected: self._on_welcome,
            events.Refused: self._on_refusal,
            events.Disconnected: self._lose,
            events.Closed: self._lose,
        }

    async def __aenter__(self) -> Self:
        asked = self._endpoint.credentials()
        shown = await asked if inspect.isawaitable(asked) else asked
        try:
            async with self._leaving, asyncio.timeout(_FIRST_ANSWER) as deadline:
                await self._dial(shown, deadline)
                self._leaving = self._leaving.pop_all()
        except TimeoutError:
            raise self._unreachable("timed out") from None
        except NotOpened as error:
            raise (self._refusal(error.body) if error.body is not None else self._unreachable(str(error))) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(cause_of(error)) from None
        return self

    async def _dial(self, shown: Credentials, deadline: asyncio.Timeout) -> None:
        def on_answer() -> None:
            """A Server that has answered once is there, and may take its time for the rest."""
            if not deadline.expired():
                deadline.reschedule(self._loop.time() + PATIENCE)

        http = await self._leaving.enter_async_context(_http_session(self._endpoint))
        self._transport = await open_transport(Dial(http, self._endpoint, shown.headers, on_answer))
        self._session = self._transport.session
        self._reading = asyncio.create_task(self._read())
        self._leaving.push_async_callback(self._end)
        self._tick()
        self._session.connect(_NAMESPACE, codec.dumps(dict(shown.auth)).encode() if shown.auth is not None else b"")
        await self._transport.flush()
        if refusal := await self._welcome:
            raise refusal

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leaving.aclose()

    def ask(
        self, event: str, data: Mapping[str, Any], timeout: float | None, then: Callable[[Any], Any] | None = None
    ) -> Coroutine[Any, Any, Any]:
        """The answer; several ack arguments come as a tuple. Raises `ConnectionLost` as soon as there will be none.

        `then` makes something of the answer before any later event is looked at.
        """
        return self._ask(event, data, then) if timeout is None else self._ask_within(timeout, event, data, then)

    async def _ask_within(
        self, timeout: float, event: str, data: Mapping[str, Any], then: Callable[[Any], Any] | None
    ) -> Any:
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(event, data, then)
        except TimeoutError:
            raise CallTimeout(f"{event} was not answered within {timeout:g} s") from None

    async def _ask(self, event: str, data: Mapping[str, Any], then: Callable[[Any], Any] | None) -> Any:
        if self.lost.is_set():
            raise ConnectionLost(outcome="not_run")
        number = self._session.next_id()
        packet, attachments = _encoded(event_packet, number, [event, data])
        answered = self._loop.create_future()
        self._waiting[number] = _Asked(answered, event, then)
        try:
            await self._send(packet, attachments)
            answer = await answered
        finally:
            self._waiting.pop(number, None)
        if answer is _NONE_WILL_COME:
            raise ConnectionLost
        return answer

    async def _send(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        try:
            await self._transport.send(packet, attachments)
        except OSError:
            self._lose()
            raise ConnectionLost from None

    # What comes

    async def _read(self) -> None:
        try:
            await self._transport.run(self._take)
        except (aiohttp.ClientError, OSError, NotOpened, Malformed) as error:
            logger.debug("%s is lost: %s", self._endpoint.place, cause_of(error))
        except Exception:
            logger.exception("what came from %s could not be handled", self._endpoint.place)
        finally:
            self._lose()

    def _take(self, happening: events.Happening) -> None:
        if reaction := self._reactions.get(type(happening)):
            reaction(happening)

    def _on_ack(self, ack: events.Ack) -> None:
        if asked := self._waiting.pop(ack.id, None):  # unknown ids are ignored
            try:
                arguments = _decoded(ack)
            except BadRequest as error:
                asked.fail(error.message)
            else:
                asked.answer(arguments)

    def _on_packet(self, event: events.Event) -> None:
        try:
            name, *arguments = _decoded(event) or [None]
            answer = self._on_event(name, arguments[0] if arguments else None) if isinstance(name, str) else None
        except BadRequest as error:
            answer = error.to_wire()
        except Exception:
            logger.exception("an event could not be handled")
            answer = SMCPError().to_wire()
        if isinstance(answer, Later):
            answer.begin(partial(self._answer, event.id))
        elif inspect.isawaitable(answer):
            self._answer_later(event.id, answer)
        else:
            self._answer(event.id, answer)

    def _on_fault(self, faulty: events.Faulty) -> None:
        """A packet that cannot be read: whoever waits for it, or for its answer, is told."""
        if faulty.is_ack:
            if faulty.id is not None and (asked := self._waiting.pop(faulty.id, None)):
                asked.fail(faulty.reason)
        elif faulty.id is not None:
            kind = TooLarge if faulty.fault is events.Fault.TOO_LARGE else BadRequest
            self._answer(faulty.id, kind(faulty.reason).to_wire())
        if faulty.next:
            self._take(faulty.next)

    def _answer_later(self, number: int | None, answer: Awaitable[Any]) -> None:
        task = asyncio.create_task(self._await_answer(number, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_answer(self, number: int | None, answer: Awaitable[Any]) -> None:
        try:
            answered = await answer
        except Exception:
            logger.exception("an event could not be handled")
            answered = SMCPError().to_wire()
        self._answer(number, answered)

    def _answer(self, number: int | None, answer: Any) -> None:
        if number is None or self.lost.is_set():  # whoever asked will ask again
            return
        try:
            self._transport.write(*_encoded_answer(number, answer))
        except OSError:
            self._lose()
        except Exception:
            logger.exception("an event was not answered")

    # How it begins and ends

    def _on_welcome(self, _: events.Connected) -> None:
        if not self._welcome.done():
            self._welcome.set_result(None)

    def _on_refusal(self, refused: events.Refused) -> None:
        try:
            reason = codec.loads_exactly(refused.body) if refused.body else None
        except BadRequest:
            reason = None
        self._lose(self._refusal(reason))

    def _refusal(self, reason: Any) -> SMCPError:
        """The error that a CONNECT_ERROR, or the body of a refused HTTP request, stands for."""
        said = reason if isinstance(reason, dict) else {"message": reason or "and does not say why"}
        error = SMCPError.from_wire(said.get("data", said))
        return error or Unavailable(f"{self._endpoint.place} refuses, {said.get('message', said)}")

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(f"{self._endpoint.place} cannot be reached, {why}")

    def _tick(self) -> None:
        """Called when the Server should have sent a ping."""
        if self._session.tick(self._loop.time()):
            self._lose()
        elif not self.lost.is_set():
            self._watch = self._loop.call_at(self._session.deadline, self._tick)

    def _lose(self, why: object = None) -> None:
        self.lost.set()
        if not self._welcome.done():
            lost = self._unreachable("the connection was lost before it was complete")
            self._welcome.set_result(why if isinstance(why, SMCPError) else lost)
        for asked in self._waiting.values():
            asked.give_up()
        self._waiting.clear()

    async def _end(self) -> None:
        """Says goodbye, if there is somebody who hears it, and stops whoever still works for this connection."""
        if self._watch:
            self._watch.cancel()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        try:
            self._session.disconnect(_NAMESPACE)
            self._session.close()
            with suppress(aiohttp.ClientError, OSError, NotOpened):
                async with asyncio.timeout(_FAREWELL):
                    await self._transport.close()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _Asked(NamedTuple):
    """Who waits for an answer, and for which."""

    answered: asyncio.Future[Any]
    event: str
    then: Callable[[Any], Any] | None

    def answer(self, arguments: list[Any]) -> None:
        if self.answered.done():
            return
        answer = arguments[0] if len(arguments) == 1 else tuple(arguments) or None
        try:
            self.answered.set_result(self.then(answer) if self.then else answer)
        except Exception as error:  # of whoever asks, who is told
            self.answered.set_exception(error)

    def fail(self, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(SMCPError(f"the answer to {self.event} cannot be read, {reason}"))

    def give_up(self) -> None:
        if not self.answered.done():
            self.answered.set_result(_NONE_WILL_COME)


def _http_session(endpoint: Endpoint) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(ssl=endpoint.ssl) if endpoint.ssl else None
    return aiohttp.ClientSession(connector=connector, trust_env=not endpoint.is_local, proxy=endpoint.proxy)


def _decoded(packet: events.Event | events.Ack) -> list[Any]:
    """Raises `BadRequest`."""
    content: list[Any] = codec.loads_exactly(packet.body)
    try:
        return attach(content, packet.attachments) if packet.attachments else content
    except Malformed as error:
        raise BadRequest(str(error)) from None


def _encoded(write: Callable[..., bytes], number: int, content: list[Any]) -> tuple[bytes, Sequence[bytes]]:
    """A packet, and what is attached to it. Raises `BadRequest` for what cannot be sent, or `TooLarge`."""
    attached: Sequence[bytes] = ()
    try:
        body = codec.dumps(content)
    except BadRequest:  # for bytes, or for what cannot be sent at all
        try:
            content, attached = detach(content)
        except RecursionError:
            raise BadRequest("nested too deeply") from None
        body = codec.dumps(content)
    return _fitting(write(_NAMESPACE, number, body.encode(), attachments=len(attached)), attached), attached


def _encoded_answer(number: int, answer: Any) -> tuple[bytes, Sequence[bytes]]:
    """A tuple is several arguments, `None` is none. Instead of what cannot be sent the error is."""
    try:
        if isinstance(answer, codec.Written):
            return _fitting(ack_packet(_NAMESPACE, number, b"[", answer.text.encode(), b"]")), ()
        arguments = [] if answer is None else list(answer) if isinstance(answer, tuple) else [answer]
        return _encoded(ack_packet, number, arguments)
    except (BadRequest, TooLarge) as error:
        return _encoded(ack_packet, number, [error.to_wire()])


def _fitting(packet: bytes, attached: Sequence[bytes] = ()) -> bytes:
    """What a Server would not even read, and drop the connection for, is not sent."""
    size = max(len(packet), *(payload_size(Attachment(data)) for data in attached)) if attached else len(packet)
    if size > _LARGEST_SENT:
        raise TooLarge(f"it has {size} bytes, at most {_LARGEST_SENT} can be sent", size=size)
    return packet


async def join(connection: Connection, role: Role, name: str, office: str, instance: str) -> None:
    """Takes a seat in an office, or takes up the one that this instance has left. Raises what it is refused with."""
    request = {"role": role, "name": name, "office_id": office, "instance": instance}
    _require_yes(await connection.ask(JOIN_OFFICE_EVENT, request, PATIENCE))


async def leave(connection: Connection, office: str, patience: float = PATIENCE) -> None:
    """Gives up a seat. Raises what that is refused with."""
    _require_yes(await connection.ask(LEAVE_OFFICE_EVENT, {"office_id": office}, patience))


def _require_yes(answer: Any) -> None:
    accepted, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (False, f"500 {answer}")
    if not accepted:
        raise SMCPError.from_text(reason)
