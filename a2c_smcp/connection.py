"""A client's Socket.IO connection to a Server: dial, ask, receive events, lose it. Agents and computers use it.

A `Connection` is used once: `async with` dials it, and it is lost at the end of the block or earlier. It never redials;
its user does (`agent/connection.py`, `computer/socketio/client.py`).

One task (`_read`) reads and calls a handler for each event, in order. A handler must not block: an answer that must be
awaited runs in a task of its own, which ends with the connection. Requests wait in `_waiting` under their ack ids. An
entry leaves it exactly once: with the ack, with the cancellation of its caller, or when the connection is lost
(`_lose`, which every failure to read or write ends in, and which may be called several times). So no request waits
longer than its connection lives.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

import aiohttp

from a2c_smcp.endpoint import Credentials, Endpoint, cause_of
from a2c_smcp.engine import events
from a2c_smcp.engine.packets import Attachment, Malformed, ack_packet, attach, detach, event_packet, payload_size
from a2c_smcp.errors import BadRequest, CallTimeout, NotAuthenticated, SMCPError, TooLarge, Unavailable
from a2c_smcp.loops import OwnedTasks, cancel_and_wait
from a2c_smcp.protocol import codec
from a2c_smcp.smcp import JOIN_OFFICE_EVENT, LEAVE_OFFICE_EVENT, SMCP_NAMESPACE
from a2c_smcp.transports import Dial, NotOpened, open_transport
from a2c_smcp.types import Role

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds that the Server itself may take to answer."""

_FIRST_ANSWER = 5.0  # seconds until the first HTTP answer of a dial
_CLOSE_TIMEOUT = 1.0
_LARGEST_SENT = 8 * 1024 * 1024  # bytes
_FRAMING = 1024
_WRONG_NAME = (62, 64)  # verify_code of OpenSSL: the host name, or the address, is not in the certificate
_NAMESPACE = SMCP_NAMESPACE.encode()
LOST = object()
"""In place of an ack: the connection was lost before it came."""

OnEvent: TypeAlias = Callable[[str, Any], "Deferred | Awaitable[Any] | Any"]
"""Called with the name and the payload of an event; its result is acked, also an awaited or a later one."""


class Deferred(NamedTuple):
    """An answer that comes by callback, without a task: `begin` is called with a function that takes the answer."""

    begin: Callable[[Callable[[Any], None]], None]


class ConnectionLost(Unavailable):
    title = "Connection lost"


LinkFault = Literal["", "certificate", "certificate name", "no TLS", "TLS", "not SMCP"]


class Unreachable(Unavailable):
    """No connection to the Server could be opened. `fault` decides what to do about it."""

    def __init__(self, reason: str = "", fault: LinkFault = "") -> None:
        super().__init__(reason)
        self.fault = fault


async def fault_of(error: BaseException, endpoint: Endpoint) -> LinkFault:
    """The fault of the URL, or of the certificates, of a Server that cannot be reached."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        wrong_name = getattr(error.certificate_error, "verify_code", 0) in _WRONG_NAME
        return "certificate name" if wrong_name else "certificate"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError) and await _speaks_tls(endpoint):
        return "TLS"
    return "no TLS" if isinstance(error, aiohttp.ClientConnectorSSLError) else ""


async def _speaks_tls(endpoint: Endpoint) -> bool:
    """True if an `http` URL names a port that greets in TLS, whatever its certificate is."""
    parts = urlsplit(endpoint.origin)
    greeting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    greeting.check_hostname, greeting.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_FIRST_ANSWER):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, ssl=greeting)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return parts.scheme == "http"


class Connection:
    """One connection: `async with Connection(endpoint, on_event) as connection`. `lost` is set when it has ended.

    `max_message` is the largest message that the Server takes, in bytes.
    Entering raises the Server's refusal, or `Unavailable`. `on_event` is called in the order of the events.
    """

    def __init__(self, endpoint: Endpoint, on_event: OnEvent) -> None:
        self._endpoint = endpoint
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Asked] = {}
        self._begin()
        self._reactions: dict[type, Callable[[Any], None]] = {
            events.Event: self._on_packet,
            events.Ack: self._on_ack,
            events.Faulty: self._on_fault,
            events.Connected: self._on_connected,
            events.ConnectRefused: self._on_refused,
            events.Disconnected: self._lose,
            events.Closed: self._lose,
        }

    def _begin(self) -> None:
        self.lost = asyncio.Event()
        self._accepted: asyncio.Future[SMCPError | None] = self._loop.create_future()  # or the refusal
        self._tasks = OwnedTasks()
        self._watch: asyncio.TimerHandle | None = None
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except NotAuthenticated as refusal:
            if not self._endpoint.retries_after(refusal):
                raise
            self._begin()
            await self._open()
        return self

    async def _open(self) -> None:
        given = self._endpoint.credentials()
        credentials = await given if inspect.isawaitable(given) else given
        try:
            async with self._exit_stack, asyncio.timeout(_FIRST_ANSWER) as deadline:
                await self._dial(credentials, deadline)
                self._exit_stack = self._exit_stack.pop_all()
        except TimeoutError:
            raise self._unreachable("timed out") from None
        except NotOpened as error:
            if error.body is not None:
                raise self._refusal(error.body) from None
            raise self._unreachable(str(error), "not SMCP" if error.status else "") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(cause_of(error), await fault_of(error, self._endpoint)) from None

    async def _dial(self, credentials: Credentials, deadline: asyncio.Timeout) -> None:
        def on_answer() -> None:
            """A Server that has answered once gets more time for the rest."""
            if not deadline.expired():
                deadline.reschedule(self._loop.time() + PATIENCE)

        at = self._endpoint
        connector = aiohttp.TCPConnector(ssl=at.ssl) if at.ssl else None
        session = aiohttp.ClientSession(connector=connector, trust_env=not at.is_local, proxy=at.proxy)
        http = await self._exit_stack.enter_async_context(session)
        self._transport = await open_transport(Dial(http, self._endpoint, credentials.headers, on_answer))
        self._session = self._transport.session
        self.max_message = min(self._session.max_payload, _LARGEST_SENT) - _FRAMING
        self._reading = asyncio.create_task(self._read())
        self._exit_stack.push_async_callback(self._end)
        self._tick()
        auth = await self._endpoint.connect_auth(credentials, self._session.sid)
        self._session.connect(_NAMESPACE, b"" if auth is None else codec.dumps(auth).encode())
        await self._transport.flush()
        if refusal := await self._accepted:
            raise refusal

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    def ask(
        self, event: str, data: Mapping[str, Any], timeout: float | None, then: Callable[[Any], Any] | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Send an event and return its ack; several ack arguments come as a tuple.

        Raises `ConnectionLost`, and `CallTimeout` if there is a timeout. `then` converts the answer before any later
        event is handled.
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
        packet, attachments = _encoded(event_packet, number, [event, data], self.max_message)
        answered = self._loop.create_future()
        self._waiting[number] = _Asked(answered, event, then)
        try:
            await self._send(packet, attachments)
            answer = await answered
        finally:
            self._waiting.pop(number, None)
        if answer is LOST:
            raise ConnectionLost
        return answer

    def post(self, event: str, data: Mapping[str, Any], then: Callable[[Any], None]) -> None:
        """Send an event now, before anything that is answered later. `then` is called with its ack, or with `LOST`.

        Raises `BadRequest` or `TooLarge` for what cannot be sent.
        """
        answered = self._loop.create_future()
        asked = _Asked(answered, event, None)
        answered.add_done_callback(lambda _: then(None if answered.exception() else answered.result()))
        if self.lost.is_set():
            asked.lose()
            return
        number = self._session.next_id()
        packet, attachments = _encoded(event_packet, number, [event, data], self.max_message)
        self._waiting[number] = asked
        try:
            self._transport.write(packet, attachments)
        except OSError:
            self._lose()

    async def _send(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        try:
            await self._transport.send(packet, attachments)
        except OSError:
            self._lose()
            raise ConnectionLost from None

    # Receiving

    async def _read(self) -> None:
        try:
            await self._transport.run(self._take)
        except (aiohttp.ClientError, OSError, NotOpened, Malformed) as error:
            logger.debug("%s is lost: %s", self._endpoint.shown_url, cause_of(error))
        except Exception:
            logger.exception("a packet from %s could not be handled", self._endpoint.shown_url)
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
        if isinstance(answer, Deferred):
            answer.begin(partial(self._answer, event.id))
        elif inspect.isawaitable(answer):
            self._tasks.spawn(self._answer_when_done(event.id, answer))
        else:
            self._answer(event.id, answer)

    def _on_fault(self, faulty: events.Faulty) -> None:
        """A packet cannot be read: fail the request that it answers, or answer it with an error."""
        if faulty.is_ack:
            if faulty.id is not None and (asked := self._waiting.pop(faulty.id, None)):
                asked.fail(faulty.reason)
        elif faulty.id is not None:
            kind = TooLarge if faulty.fault is events.Fault.TOO_LARGE else BadRequest
            self._answer(faulty.id, kind(faulty.reason).to_wire())
        if faulty.next:
            self._take(faulty.next)

    async def _answer_when_done(self, number: int | None, answer: Awaitable[Any]) -> None:
        try:
            answered = await answer
        except Exception:
            logger.exception("an event could not be handled")
            answered = SMCPError().to_wire()
        self._answer(number, answered)

    def _answer(self, number: int | None, answer: Any) -> None:
        if number is None or self.lost.is_set():  # the Server will ask again on the next connection
            return
        try:
            self._transport.write(*_encoded_answer(number, answer, self.max_message))
        except OSError:
            self._lose()
        except Exception:
            logger.exception("an event was not answered")

    # Beginning and end

    def _on_connected(self, _: events.Connected) -> None:
        if not self._accepted.done():
            self._accepted.set_result(None)

    def _on_refused(self, refused: events.ConnectRefused) -> None:
        try:
            reason = codec.loads_exactly(refused.body) if refused.body else None
        except BadRequest:
            reason = None
        self._lose(self._refusal(reason))

    def _refusal(self, reason: Any) -> SMCPError:
        """The error in a CONNECT_ERROR, or in the body of a refused HTTP request."""
        body = reason if isinstance(reason, dict) else {"message": reason or "and does not say why"}
        error = SMCPError.from_wire(body.get("data", body))
        return error or Unavailable(f"{self._endpoint.shown_url} refuses, {body.get('message', body)}")

    def _unreachable(self, why: str, fault: LinkFault = "") -> Unreachable:
        return Unreachable(f"{self._endpoint.shown_url} cannot be reached, {why}", fault)

    def _tick(self) -> None:
        """Called when the Server should have sent a ping."""
        if self._session.tick(self._loop.time()):
            self._lose()
        elif not self.lost.is_set():
            self._watch = self._loop.call_at(self._session.deadline, self._tick)

    def _lose(self, why: object = None) -> None:
        self.lost.set()
        if not self._accepted.done():
            lost = self._unreachable("the connection was lost before it was complete")
            self._accepted.set_result(why if isinstance(why, SMCPError) else lost)
        for asked in self._waiting.values():
            asked.lose()
        self._waiting.clear()

    async def _end(self) -> None:
        """Disconnect, and end all tasks of this connection."""
        was_lost = self.lost.is_set()
        if self._watch:
            self._watch.cancel()
        await cancel_and_wait(self._reading)
        try:
            if not was_lost:  # else a Server that still has the line must not take this for a leave
                self._session.disconnect(_NAMESPACE)
            self._session.close()
            with suppress(aiohttp.ClientError, OSError, NotOpened):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self._transport.close()
        finally:
            await self._tasks.close()


class _Asked(NamedTuple):
    """A request that waits for its ack."""

    answered: asyncio.Future[Any]
    event: str
    then: Callable[[Any], Any] | None

    def answer(self, arguments: list[Any]) -> None:
        if self.answered.done():
            return
        answer = arguments[0] if len(arguments) == 1 else tuple(arguments) or None
        try:
            self.answered.set_result(self.then(answer) if self.then else answer)
        except Exception as error:  # raised by `then`, for the caller
            self.answered.set_exception(error)

    def fail(self, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(SMCPError(f"the answer to {self.event} cannot be read, {reason}"))

    def lose(self) -> None:
        if not self.answered.done():
            self.answered.set_result(LOST)


def _decoded(packet: events.Event | events.Ack) -> list[Any]:
    """Raises `BadRequest`."""
    content: list[Any] = codec.loads_exactly(packet.body)
    try:
        return attach(content, packet.attachments) if packet.attachments else content
    except Malformed as error:
        raise BadRequest(str(error)) from None


def _encoded(write: Callable[..., bytes], number: int, content: list[Any], most: int) -> tuple[bytes, Sequence[bytes]]:
    """A packet and its attachments. Raises `BadRequest` for content that cannot be sent, or `TooLarge`."""
    attached: Sequence[bytes] = ()
    try:
        body = codec.dumps_each(content)
    except BadRequest:  # it has bytes, which are sent as attachments, or cannot be sent at all
        try:
            content, attached = detach(content)
        except RecursionError:
            raise BadRequest("nested too deeply") from None
        body = codec.dumps(content)
    return _checked_size(write(_NAMESPACE, number, body.encode(), attachments=len(attached)), most, attached), attached


def _encoded_answer(number: int, answer: Any, most: int) -> tuple[bytes, Sequence[bytes]]:
    """An ack packet: a tuple is several arguments, `None` is no argument. What cannot be sent becomes an error."""
    try:
        if isinstance(answer, codec.Encoded):
            return _checked_size(ack_packet(_NAMESPACE, number, b"[", answer.text.encode(), b"]"), most), ()
        arguments = [] if answer is None else list(answer) if isinstance(answer, tuple) else [answer]
        return _encoded(ack_packet, number, arguments, most)
    except (BadRequest, TooLarge) as error:
        return _encoded(ack_packet, number, [error.to_wire()], most)


def _checked_size(packet: bytes, most: int, attached: Sequence[bytes] = ()) -> bytes:
    """Raises `TooLarge` for a packet that makes a Server drop the connection."""
    size = max(len(packet), *(payload_size(Attachment(data)) for data in attached)) if attached else len(packet)
    if size > most:
        raise TooLarge(f"it has {size} bytes, at most {most} can be sent", size=size)
    return packet


# Joining and leaving an office over a connection, for agents and computers.


async def join(connection: Connection, role: Role, name: str, office: str, instance: str, **more: Any) -> None:
    """Join an office, or take up the seat that this instance had. Raises the refusal."""
    request = {"role": role, "name": name, "office_id": office, "instance": instance, **more}
    _require_accepted(await connection.ask(JOIN_OFFICE_EVENT, request, PATIENCE))


async def leave(connection: Connection, office: str, timeout: float = PATIENCE) -> None:
    """Leave an office. Raises the refusal."""
    _require_accepted(await connection.ask(LEAVE_OFFICE_EVENT, {"office_id": office}, timeout))


def _require_accepted(answer: Any) -> None:
    accepted, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (False, f"500 {answer}")
    if not accepted:
        raise SMCPError.from_text(reason)
