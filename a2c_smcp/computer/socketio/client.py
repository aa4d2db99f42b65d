"""The Computer's connection to a Server: dials out, joins, answers, and comes back by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any
from urllib.parse import urlencode

import aiohttp
import socketio
from socketio import packet

from a2c_smcp import smcp
from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.computer import Computer, Update
from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.errors import BadRequest, Forbidden, NotAuthenticated, SMCPError, Unavailable, VersionMismatch
from a2c_smcp.protocol import PROTOCOL_VERSION, codec
from a2c_smcp.protocol.events import OLDER_FIELDS, lookup
from a2c_smcp.protocol.results import error_ack, failed_call

__all__ = ["Reconnect", "SMCPComputerClient"]

logger = logging.getLogger(__name__)

_FINAL = (NotAuthenticated, Forbidden, BadRequest, VersionMismatch)
_PATIENCE = 20.0
_FAREWELL = 2.0
_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """How long to wait before the next attempt, in seconds: doubling, with chance mixed in."""

    first: float = 0.5
    longest: float = 30.0

    def delay(self, attempt: int) -> float:
        longest: float = min(self.first * 2**attempt, self.longest)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311, not a secret


class _StrictJSON:
    @staticmethod
    def loads(text: str) -> Any:
        return codec.loads_exactly(text)

    @staticmethod
    def dumps(value: Any, separators: object = None) -> str:
        return codec.dumps(value)


class _Packet(packet.Packet):  # type: ignore[misc]  # untyped base
    json = _StrictJSON


class SMCPComputerClient:
    """One computer in one office. `run` returns only when it is cancelled, or refused for good."""

    def __init__(
        self,
        computer: Computer,
        url: str,
        office: str,
        *,
        instance: str,
        api_key: str | None = None,
        ssl: SSLContext | None = None,
        proxy: str | None = None,
        reconnect: Reconnect | None = None,
        on_connection: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._computer = computer
        self._url = f"{url}{'&' if '?' in url else '?'}{urlencode({'a2c_version': PROTOCOL_VERSION})}"
        self._office = office
        self._instance = instance
        self._api_key = api_key
        self._ssl, self._proxy = ssl, proxy
        self._reconnect = reconnect or Reconnect()
        self._tell = on_connection
        self._handling: set[asyncio.Task[Any]] = set()
        self._updates: set[Update] = set()
        self._has_updates = asyncio.Event()
        self._refusal: SMCPError | None = None
        computer.mask.add([instance, *([api_key] if api_key else []), *_secrets_in(url), *_secrets_in(proxy or "")])
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            smcp.TOOL_CALL_EVENT: self._tool_call,
            smcp.GET_TOOLS_EVENT: self._get_tools,
            smcp.GET_CONFIG_EVENT: self._get_config,
            smcp.GET_DESKTOP_EVENT: self._get_desktop,
        }

    async def run(self) -> None:
        """Serves until cancelled. Raises what the Server refuses it with; everything else is tried again."""
        stop_listening = self._computer.on_update(self._on_update)
        attempt = 0
        try:
            while True:
                try:
                    await self._serve()
                    attempt = 0
                except _FINAL:
                    raise
                except (SMCPError, OSError, aiohttp.ClientError, socketio.exceptions.SocketIOError) as error:
                    self._on_connection(f"not connected: {error}")
                    attempt += 1
                await asyncio.sleep(self._reconnect.delay(attempt))
        finally:
            stop_listening()
            self._computer.forget(self._office)

    def _on_connection(self, what: str) -> None:
        self._tell(self._computer.mask.text(what))

    async def _serve(self) -> None:
        """One connection, from dialling to its end."""
        connector = aiohttp.TCPConnector(ssl=self._ssl) if self._ssl else None
        async with aiohttp.ClientSession(connector=connector, trust_env=True, proxy=self._proxy) as http:
            extra: dict[str, Any] = {"max_msg_size": _LARGEST}
            if self._ssl:
                extra["ssl"] = self._ssl
            client = socketio.AsyncClient(
                reconnection=False,
                handle_sigint=False,
                serializer=_Packet,
                http_session=http,
                websocket_extra_options=extra,
            )
            lost = asyncio.Event()
            self._listen(client, lost)
            sending: asyncio.Task[None] | None = None
            try:
                await self._connect(client)
                await self._join(client)
                self._on_connection(f"joined {self._office}")
                sending = asyncio.create_task(self._send_updates(client))
                await lost.wait()
                self._on_connection("connection lost")
            finally:
                with suppress(Exception):
                    async with asyncio.timeout(_FAREWELL):
                        await self._say_goodbye(client, has_joined=sending is not None and not lost.is_set())
                await self._end([sending] if sending else [])

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Whoever still works for a connection that is gone. The calls themselves go on, and find the next one."""
        tasks += self._handling
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, client: socketio.AsyncClient) -> None:
        self._refusal = None
        auth = {"token": self._api_key} if self._api_key else None
        try:
            await client.connect(self._url, auth=auth, namespaces=[smcp.SMCP_NAMESPACE], wait_timeout=_PATIENCE)
        except socketio.exceptions.ConnectionError as error:
            raise (self._refusal or Unavailable(f"cannot reach it, {error}; trying again")) from None

    async def _join(self, client: socketio.AsyncClient) -> None:
        request = {"role": "computer", "name": self._computer.name, "office_id": self._office}
        answer = await self._ask(client, smcp.JOIN_OFFICE_EVENT, {**request, "instance": self._instance})
        accepted, reason = answer if isinstance(answer, tuple) else (False, f"500 {answer}")
        if not accepted:
            raise SMCPError.from_text(reason)

    async def _say_goodbye(self, client: socketio.AsyncClient, *, has_joined: bool) -> None:
        if has_joined:
            await self._ask(client, smcp.LEAVE_OFFICE_EVENT, {"office_id": self._office})
        await client.disconnect()

    async def _ask(self, client: socketio.AsyncClient, event: str, data: dict[str, Any]) -> Any:
        return await client.call(event, data, namespace=smcp.SMCP_NAMESPACE, timeout=_PATIENCE)

    def _listen(self, client: socketio.AsyncClient, lost: asyncio.Event) -> None:
        def on_refusal(reason: Any) -> None:
            data = reason.get("data", reason) if isinstance(reason, dict) else None
            self._refusal = SMCPError.from_wire(data) or Unavailable(str(reason))

        client.on("connect_error", on_refusal, namespace=smcp.SMCP_NAMESPACE)
        client.on("disconnect", lambda *_: lost.set(), namespace=smcp.SMCP_NAMESPACE)
        client.on("*", self._on_event, namespace=smcp.SMCP_NAMESPACE)

    async def _on_event(self, name: str, *args: Any) -> Any:
        """Everything that comes from the Server, each in a task of its own."""
        data = args[0] if args and isinstance(args[0], dict) else {}
        if name.startswith("notify:"):
            self._on_notice(name, data)
            return None
        task = asyncio.current_task()
        assert task
        self._handling.add(task)
        try:
            return await self._answer(name, data)
        finally:
            self._handling.discard(task)

    async def _answer(self, name: str, data: dict[str, Any]) -> Any:
        """A request always gets an answer."""
        event = None
        try:
            event = lookup(name)
            if event.name not in self._answers:
                raise BadRequest(f"this computer does not know {name!r}")
            answer = await self._answers[event.name](codec.decode(event, data))
            return answer if event.name == smcp.TOOL_CALL_EVENT else self._computer.fitting(answer)
        except SMCPError as error:
            return self._computer.mask.data(error_ack(event, error))
        except Exception:
            logger.exception("%s failed", name)
            return error_ack(event, SMCPError())

    def _on_notice(self, name: str, data: dict[str, Any]) -> None:
        agent = data.get("agent", data.get(OLDER_FIELDS["agent"]))
        if not isinstance(agent, str):
            return
        if name == smcp.CANCEL_TOOL_CALL_NOTIFICATION and isinstance(data.get("req_id"), str):
            self._computer.cancel(agent, data["req_id"])
        elif name == smcp.LEAVE_OFFICE_NOTIFICATION:
            self._computer.forget(self._office, agent)

    async def _tool_call(self, data: dict[str, Any]) -> Any:
        caller = Caller(self._office, data.get("agent") or data[OLDER_FIELDS["agent"]])
        timeout = codec.timeout_of(lookup(smcp.TOOL_CALL_EVENT), data)
        assert timeout
        try:
            return await self._computer.execute_tool(caller, data["req_id"], data["tool_name"], data["params"], timeout)
        except Exception:
            logger.exception("a tool call failed")
            return failed_call(SMCPError())

    async def _get_tools(self, data: dict[str, Any]) -> smcp.GetToolsRet:
        return smcp.GetToolsRet(tools=[*self._computer.get_tools()], req_id=data["req_id"])

    async def _get_config(self, data: dict[str, Any]) -> smcp.GetComputerConfigRet:
        return self._computer.get_config()

    async def _get_desktop(self, data: dict[str, Any]) -> smcp.GetDeskTopRet:
        desktops = await self._computer.get_desktop(data.get("desktop_size"), data.get("window"))
        return smcp.GetDeskTopRet(desktops=desktops, req_id=data["req_id"])

    def _on_update(self, update: Update) -> None:
        self._updates.add(update)
        self._has_updates.set()

    async def _send_updates(self, client: socketio.AsyncClient) -> None:
        """Tells what has changed, also while there was no connection. What comes together goes together.

        What was not heard is told again, after the connection was lost too.
        """
        while True:
            await self._has_updates.wait()
            self._has_updates.clear()
            for update in sorted(self._updates):
                self._updates.discard(update)
                try:
                    await self._ask(client, f"server:update_{update}", {"computer": self._computer.name})
                except socketio.exceptions.TimeoutError:
                    self._on_update(update)
                except socketio.exceptions.SocketIOError:
                    self._on_update(update)
                    return
                except asyncio.CancelledError:
                    self._on_update(update)
                    raise


def _secrets_in(url: str) -> set[str]:
    literals = Literals()
    literals.text(url)
    return literals.found
