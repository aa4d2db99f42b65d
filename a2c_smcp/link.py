"""A line out to a Server: dialled, used and lost. What is said over it is its user's business."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

import aiohttp
import socketio

from a2c_smcp.errors import BadRequest, CallTimeout, ConfigError, SMCPError, Unavailable
from a2c_smcp.protocol import PROTOCOL_VERSION
from a2c_smcp.smcp import JOIN_OFFICE_EVENT, LEAVE_OFFICE_EVENT, SMCP_NAMESPACE
from a2c_smcp.types import Role
from a2c_smcp.wire import OnAck, OnPacket, WiredClient

__all__ = ["PATIENCE", "Credentials", "Line", "LineLost", "OnEvent", "Reconnect", "Route", "join", "leave"]

logger = logging.getLogger(__name__)

PATIENCE = 20.0
"""How long the Server itself may take to answer, in seconds."""

_FAREWELL = 1.0
_LARGEST = 16 * 1024 * 1024
_SECRET_PARTS = re.compile(r"(?<=//)[^\s/]*@|\?[^\s'\"]*")
_SCHEMES = ("http", "https", "ws", "wss")

OnEvent: TypeAlias = Callable[[str, Any], Awaitable[Any] | Any]
"""Given the name and the payload of an event; what it returns is acked."""


class LineLost(Unavailable):
    opening = "Connection lost"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is shown to a Server at its door: the CONNECT `auth` object, and headers."""

    auth: Mapping[str, Any] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_key(cls, api_key: str | None) -> Credentials:
        return cls({"token": api_key}) if api_key else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """How long to wait before the next attempt, in seconds: doubling, with chance mixed in."""

    first: float = 0.5
    longest: float = 30.0

    def delay(self, attempt: int) -> float:
        longest: float = min(self.first * 2 ** min(attempt, 30), self.longest)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to get to a Server. `credentials` are asked for anew each time."""

    url: str = field(repr=False)
    credentials: Callable[[], Credentials | Awaitable[Credentials]] = Credentials
    ssl: SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            shown = self.url.rpartition("@")[2].partition("?")[0]
            raise ConfigError(f"{shown!r} is not the URL of a Server, which looks like http://127.0.0.1:7000")

    @property
    def place(self) -> str:
        """The URL as it may be shown: without what could be secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else parts.path

    @property
    def is_local(self) -> bool:
        """On this machine, where no proxy of the environment is asked."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    @property
    def versioned(self) -> str:
        """The URL with the version of the protocol that is spoken here."""
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode({'a2c_version': PROTOCOL_VERSION})}"

    @property
    def socket_path(self) -> str:
        """Where Socket.IO is: below the path of the URL, for a Server that is mounted in another application."""
        return f"{urlsplit(self.url).path.rstrip('/').removesuffix('/socket.io')}/socket.io"


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
        self._waiting: set[asyncio.Future[Any]] = set()
        self._handling: set[asyncio.Task[Any]] = set()
        self._leaving = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._leaving:
            self._client = await self._leaving.enter_async_context(_socket(self._route, self._on_packet))
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
            raise LineLost
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
            await self._client.connect(
                self._route.versioned,
                auth=dict(shown.auth) if shown.auth is not None else None,
                headers=dict(shown.headers),
                namespaces=[SMCP_NAMESPACE],
                socketio_path=self._route.socket_path,
                wait_timeout=PATIENCE,
            )
        except (socketio.exceptions.SocketIOError, aiohttp.ClientError, OSError) as error:
            raise (self._refusal or Unavailable(f"{self._route.place} cannot be reached, {_cause_of(error)}")) from None
        if task.cancelling() > cancels:  # one that came together with the answer was lost in asyncio.wait_for (3.11)
            raise asyncio.CancelledError

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


def _cause_of(error: BaseException) -> str:
    """In the words of the system where it has some, which are shorter than those of the libraries above it.

    Those may hold a URL, and with it the password of a proxy.
    """
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = getattr(cause, "os_error", None) or cause.__cause__ or cause.__context__
    return _reason_in(_SECRET_PARTS.sub("", str(error)))


def _reason_in(text: str) -> str:
    """python-engineio keeps of an error only its text, which names the host again: "Cannot connect to … [reason]"."""
    found = re.search(r" \[(.+)\]$", text, re.DOTALL)
    reason = found[1] if found else text
    return "nobody answers there" if reason.startswith("Connect call failed") else reason


def _is_url(url: str) -> bool:
    """Whether it has a scheme we speak, a host that can be looked up, and a port that there is."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False


@asynccontextmanager
async def _socket(route: Route, on_packet: OnPacket) -> AsyncIterator[WiredClient]:
    """A Socket.IO client, with an HTTP session that ends with it."""
    connector = aiohttp.TCPConnector(ssl=route.ssl) if route.ssl else None
    extra: dict[str, Any] = {"max_msg_size": _LARGEST, **({"ssl": route.ssl} if route.ssl else {})}
    async with aiohttp.ClientSession(connector=connector, trust_env=not route.is_local, proxy=route.proxy) as http:
        yield WiredClient(
            on_packet,
            reconnection=False,
            handle_sigint=False,
            http_session=http,
            websocket_extra_options=extra,
        )
