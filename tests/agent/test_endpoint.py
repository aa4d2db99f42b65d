"""Endpoints with a private CA, a client certificate and a proxy, for the agent and the computer."""

from __future__ import annotations

import asyncio
import base64
import gc
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import Unavailable
from tests.agent.twins import KINDS, Twin, at_work
from tests.computer.hosted import hosted
from tests.peer import Peer
from tests.server.test_program import certificate

both = pytest.mark.parametrize("kind", KINDS, ids=["async", "blocking"])


class Gates:
    """A proxy that forwards all bytes to a Server after it has accepted a client."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._pumps: set[asyncio.Task[None]] = set()
        self.asked: list[bytes] = []

    async def tls(self, to: str, context: ssl.SSLContext) -> str:
        """A front with TLS before a Server without."""
        host, _, port = to.removeprefix("http://").partition(":")

        async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._join(reader, writer, host, int(port))

        return f"https://127.0.0.1:{await self._open(enter, ssl=context)}"

    async def proxy(self, user: str) -> str:
        """A CONNECT proxy for one user."""
        pass_key = base64.b64encode(user.encode())

        async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.partition(b"\r\n")[0])
            if b"Proxy-Authorization: Basic " + pass_key not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                writer.close()
                return
            host, _, port = head.split()[1].decode().partition(":")
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._join(reader, writer, host, int(port))

        return f"127.0.0.1:{await self._open(enter)}"

    async def _open(self, enter: Any, **options: Any) -> int:
        server = await asyncio.start_server(enter, "127.0.0.1", 0, **options)
        self._stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        there, back = await asyncio.open_connection(host, port)
        self._stack.callback(back.transport.abort)
        self._pumps |= {asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))}

    async def close(self) -> None:
        await self._stack.aclose()
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        with warnings.catch_warnings():  # aiohttp may drop the transport of a refused client without closing it
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.transport.abort()


@pytest.fixture
async def gates() -> AsyncIterator[Gates]:
    gates = Gates()
    yield gates
    await gates.close()


class Trust:
    """A Server that knows one client, and a client that knows one Server."""

    def __init__(self, folder: Path) -> None:
        self.server_cert, self.server_key = certificate(folder, "server")
        self.client_cert, self.client_key = certificate(folder, "client")

    def of_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_cert, self.server_key)
        context.load_verify_locations(self.client_cert)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def of_client(self, *, with_certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.server_cert)
        if with_certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path)


@both
@pytest.mark.covers("agent-asks")
async def test_through_a_proxy_with_a_client_certificate_to_a_server_of_a_private_authority(
    kind: Any, shared_hub: Any, office: str, gates: Gates, trust: Trust, computer: Peer
) -> None:
    computer.answers("client:get_tools", {"tools": [], "req_id": "x"})
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": "x" * 2_000_000}]})
    url = await gates.tls(shared_hub.url, trust.of_server())
    proxy = f"http://planner:open%20sesame@{await gates.proxy('planner:open sesame')}"
    async with at_work(kind, url=url, office=office, ssl=trust.of_client(), proxy=proxy) as agent:
        assert (await agent.emit_tool_call("laptop", "add")).text == "x" * 2_000_000
    place = url.removeprefix("https://").encode()
    assert set(gates.asked) == {b"CONNECT " + place + b" HTTP/1.1"}


@both
@pytest.mark.covers("agent-asks")
async def test_a_refused_client_gets_a_reason_without_secrets(
    kind: Any, shared_hub: Any, office: str, gates: Gates, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    url = await gates.tls(shared_hub.url, trust.of_server())
    proxy = await gates.proxy("planner:open sesame")
    ways = [
        {"ssl": trust.of_client(), "proxy": f"http://planner:hunter2@{proxy}"},
        {"ssl": trust.of_client(with_certificate=False)},
        {"ssl": ssl.create_default_context()},
        {},
    ]
    for way in ways:
        agent = Twin(kind("planner", url=f"{url}?token=hunter2", office=office, **way))
        with pytest.raises(Unavailable) as refused:
            await agent.connect()
        assert "hunter2" not in f"{refused.value}{refused.value!r}{vars(agent.client)}{caplog.text}"


@pytest.mark.covers("computer-serves")
async def test_a_computer_uses_the_same_proxy_and_certificates(
    shared_hub: Any, office: str, gates: Gates, trust: Trust, tmp_path: Path, agent: Peer
) -> None:
    computer = Computer("tower")
    computer.tool(lambda: "here", name="look", auto_apply=True)
    url = await gates.tls(shared_hub.url, trust.of_server())
    proxy = f"http://tower:open%20sesame@{await gates.proxy('tower:open sesame')}"
    async with hosted(computer, url, office, tmp_path, ssl=trust.of_client(), proxy=proxy):
        assert (await agent.call_tool("tower", "look"))["content"][0]["text"] == "here"
    assert gates.asked
