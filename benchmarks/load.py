"""The load: agents and computers as raw Engine.IO over a C websocket, so that asking costs less than what is asked.

They come as most clients do: a handshake and CONNECT by polling, then the upgrade to a websocket, over which they join
their office. A computer answers every call at once, from a result that was made beforehand.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import aiohttp
import picows

from benchmarks.processes import PATIENCE

__all__ = [
    "ACK",
    "KEY",
    "REQUEST",
    "Agent",
    "Burst",
    "Computer",
    "Office",
    "Refused",
    "Socket",
    "bare_offices",
    "burst",
    "offices",
    "result_of",
    "upgraded",
    "websocket_first",
]

TEXT = picows.WSMsgType.TEXT
REQUEST, ACK = b"42/smcp,", b"43/smcp,"
HEAD = len(ACK)
LONGEST_HEAD = 48
VERSION = "EIO=4&a2c_version=0.4.0"
KEY = "benchmark-0123456789"
CONNECT = f'40/smcp,{{"token":"{KEY}"}}'
PROSE = 'The tool said "tea is ready", twice.\n'
"""What results are made of: words, and now and then something that JSON has to escape."""

_SILENCE = logging.getLogger("benchmarks.load.picows")
_SILENCE.setLevel(logging.ERROR)  # a full socket buffer is no news here

Kind = TypeVar("Kind", bound="Socket")


class Refused(Exception):
    """A server did not do what every server here is asked to."""


class Socket(picows.WSListener):
    """A websocket that answers pings, and tells who waits for the first words on it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._awaited = b""

    def on_ws_connected(self, transport: Any) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        self.hear(bytes(frame.get_payload_as_memoryview()[:LONGEST_HEAD]))

    def hear(self, head: bytes) -> None:
        """Whatever is not a call, nor the answer to one. Notices are nobody's business here."""
        if head == b"2":
            self.say(b"3")
        elif self._awaited and head.startswith(self._awaited):
            self._awaited = b""
            self._answer.set_result(head)

    def say(self, text: bytes) -> None:
        self.transport.send(TEXT, text)

    async def ask(self, text: bytes, awaited: bytes) -> bytes:
        """Says something, and waits for what begins like this."""
        self._awaited, self._answer = awaited, asyncio.get_running_loop().create_future()
        self.say(text)
        return await asyncio.wait_for(self._answer, PATIENCE)

    async def join(self, role: str, name: str, office: str) -> None:
        seat = json.dumps(["server:join_office", {"role": role, "name": name, "office_id": office}])
        answer = await self.ask(REQUEST + b"0" + seat.encode(), ACK + b"0[")
        if not answer.startswith(ACK + b"0[true"):
            raise Refused(f"{name} may not join: {answer.decode()}")


class Computer(Socket):
    """Answers every call with the same result."""

    def __init__(self) -> None:
        super().__init__()
        self.result = b"[null]"

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        head = bytes(frame.get_payload_as_memoryview()[:LONGEST_HEAD])
        if head.startswith(REQUEST) and (begin := head.index(b"[")) > HEAD:
            transport.send(TEXT, b"43/smcp,%b%b" % (head[HEAD:begin], self.result))
        else:
            self.hear(head)


class Agent(Socket):
    """Keeps so many calls in flight for so long, and notes how long each took."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = count(1)
        self._sent: dict[int, float] = {}
        self._request = b""
        self._until = 0.0
        self._smallest = 0
        self._seconds: list[float] = []
        self._done: asyncio.Future[list[float]] | None = None

    async def calls(self, request: bytes, in_flight: int, until: float, smallest: int) -> list[float]:
        """`request` has a place for the ack id and one for the req_id; a smaller answer is an error."""
        self._request, self._until, self._smallest = request, until, smallest
        self._seconds = []
        self._done = asyncio.get_running_loop().create_future()
        for _ in range(in_flight):
            self._call(time.perf_counter())
        return await self._done

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        head = bytes(frame.get_payload_as_memoryview()[:LONGEST_HEAD])
        if not head.startswith(ACK) or (number := int(head[HEAD : head.index(b"[")])) not in self._sent:
            self.hear(head)
        elif frame.payload_size < self._smallest:
            self._end(Refused(f"a call was answered with {head.decode()}..."))
        else:
            self._answered(number, time.perf_counter())

    def on_ws_disconnected(self, transport: Any) -> None:
        self._end(Refused("the server has closed an agent's connection"))

    def _call(self, now: float) -> None:
        number = next(self._ids)
        self._sent[number] = now
        self.transport.send(TEXT, self._request % (number, number))

    def _answered(self, number: int, now: float) -> None:
        self._seconds.append(now - self._sent.pop(number))
        if now < self._until:
            self._call(now)
        elif not self._sent:
            self._end(None)

    def _end(self, error: Refused | None) -> None:
        if self._done is None or self._done.done():
            return
        if error:
            self._done.set_exception(error)
        else:
            self._done.set_result(self._seconds)


@dataclass(frozen=True, slots=True)
class Office:
    """One agent, one computer, and how the one calls the other."""

    agent: Agent
    computer: Computer
    request: bytes


@dataclass(frozen=True, slots=True)
class Burst:
    """What came of some calls: how long each took, and all of them, and what asking cost this process."""

    seconds: list[float]
    wall: float
    asking: float


async def burst(offices: Sequence[Office], *, in_flight: int, seconds: float, result: bytes) -> Burst:
    """Calls for so long, spread evenly; where there are fewer calls than offices, the others rest."""
    shares = [in_flight // len(offices) + (number < in_flight % len(offices)) for number in range(len(offices))]
    for office in offices:
        office.computer.result = result
    cpu, start = time.process_time(), time.perf_counter()
    async with asyncio.timeout(seconds + PATIENCE), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(office.agent.calls(office.request, share, start + seconds, len(result)))
            for office, share in zip(offices, shares, strict=True)
            if share
        ]
    latencies = [each for task in tasks for each in task.result()]
    return Burst(latencies, time.perf_counter() - start, time.process_time() - cpu)


def result_of(size: int) -> bytes:
    """The arguments of an ack, so many bytes of them: a tool's result with that much text."""
    around = len(_json([_result("")]))
    escaped = json.dumps(PROSE * (size // len(PROSE)))[1:-1][: size - around].rstrip("\\")
    return _json([_result("@")]).replace("@", escaped).encode()


@asynccontextmanager
async def offices(
    url: str, number: int, *, computers_at: str | None = None, first: int = 0
) -> AsyncIterator[list[Office]]:
    """So many offices of a Socket.IO server, or of two nodes of one: agents at the one, computers at the other."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        found = []
        for each in range(first, first + number):
            computer = await stack.enter_async_context(upgraded(Computer, session, computers_at or url))
            agent = await stack.enter_async_context(upgraded(Agent, session, url))
            await computer.join("computer", f"computer-{each}", f"office-{each}")
            await agent.join("agent", f"agent-{each}", f"office-{each}")
            found.append(Office(agent, computer, _request(each)))
        yield found


@asynccontextmanager
async def bare_offices(url: str, number: int) -> AsyncIterator[list[Office]]:
    """So many pairs at the bare relay, which knows its websockets by their path."""
    async with AsyncExitStack() as stack:
        found = []
        for each in range(number):
            computer = await stack.enter_async_context(_websocket(Computer, f"{url}/computer/{each}"))
            agent = await stack.enter_async_context(_websocket(Agent, f"{url}/agent/{each}"))
            found.append(Office(agent, computer, _request(each)))
        yield found


@asynccontextmanager
async def upgraded(kind: type[Kind], session: aiohttp.ClientSession, url: str) -> AsyncIterator[Kind]:
    """As `kind`, connected to the namespace by polling and then moved to a websocket."""
    there = f"{url}/socket.io/?{VERSION}"
    opened = json.loads((await _poll(session, f"{there}&transport=polling"))[1:])
    there = f"{there}&sid={opened['sid']}"
    async with session.post(f"{there}&transport=polling", data=CONNECT) as response:
        response.raise_for_status()
    if not (answer := await _poll(session, f"{there}&transport=polling")).startswith("40/smcp,"):
        raise Refused(answer)
    async with _websocket(kind, f"{there}&transport=websocket") as socket:
        await socket.ask(b"2probe", b"3probe")
        socket.say(b"5")
        yield socket


@asynccontextmanager
async def websocket_first(kind: type[Kind], url: str) -> AsyncIterator[Kind]:
    """As `kind`, connected to the namespace over a websocket from the beginning."""
    async with _websocket(kind, f"{url}/socket.io/?{VERSION}&transport=websocket") as socket:
        if not (answer := await socket.ask(CONNECT.encode(), b"4")).startswith(b"40/smcp,"):
            raise Refused(answer.decode())
        yield socket


async def _poll(session: aiohttp.ClientSession, there: str) -> str:
    async with session.get(there) as response:
        response.raise_for_status()
        return await response.text()


@asynccontextmanager
async def _websocket(kind: type[Kind], url: str) -> AsyncIterator[Kind]:
    socket = kind()
    transport, _ = await picows.ws_connect(lambda: socket, url.replace("http", "ws", 1), logger_name=_SILENCE)
    try:
        yield socket
    finally:
        transport.disconnect()
        await transport.wait_disconnected()


def _request(number: int) -> bytes:
    """About 200 bytes, with places for the ack id and the req_id."""
    return (
        b'42/smcp,%%d["client:tool_call",{"agent":"agent-%d","req_id":"req-%%032d","computer":"computer-%d",'
        b'"tool_name":"search_notes","params":{"query":"green tea","limit":5},"timeout":10}]' % (number, number)
    )


def _result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False}


def _json(value: object) -> str:
    """As clients of Socket.IO write it, without blanks."""
    return json.dumps(value, separators=(",", ":"))
