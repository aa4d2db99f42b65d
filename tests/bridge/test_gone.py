"""MCP clients that are gone while their calls wait for a person: after a pause these are withdrawn, others go on."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.registry import AsyncToolContext
from tests.computer.hosted import hosted
from tests.stage.bridge import KEY, BridgedOffice, begun, first_event_id, response_in, until_once_listed
from tests.stage.owners import WaitingOwner
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-gone")

CLIENT = Path(__file__).with_name("waiting_client.py")
PAUSE = 1


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Bank:
    """A computer whose tools wait: for the owner, for the test, and then for an answer. And what has run."""

    def __init__(self, *, asks_owner: bool = True) -> None:
        self.owner, self.person = WaitingOwner(), WaitingOwner()
        self.go = asyncio.Event()
        self.runs: list[str] = []
        self.ended: list[str] = []
        self.computer = Computer("bank", approve=self.owner, on_question=self.person if asks_owner else None)
        self.computer.tool(self.pay)
        self.computer.tool(self.work, auto_apply=True)

    def pay(self, what: str = "") -> str:
        self.runs.append(f"pay {what}")
        return "paid"

    async def work(self, context: AsyncToolContext, asks: bool = False) -> str:
        self.runs.append("work")
        try:
            await self.go.wait()
            if asks:
                await context.ask("Who are you?", NAME)
        finally:
            self.ended.append("work")
        return "worked"


class Served:
    """The bank in an office, and a bridge to it, or a Server with `--mcp`."""

    def __init__(self, url: str, bank: Bank) -> None:
        self.url, self.bank = url, bank


@asynccontextmanager
async def served(
    office: BridgedOffice, folder: Path, pause: int, bank: Bank | None = None, *, by_server: bool = False
) -> AsyncIterator[Served]:
    bank, after = bank or Bank(), str(pause)
    await office.start_server(*(("--mcp", "--mcp-withdraw-after", after) if by_server else ()))
    async with hosted(bank.computer, office.url, "desk", folder):
        url = f"{office.url}/mcp/desk" if by_server else (await office.start_bridge("--withdraw-after", after))[1]
        yield Served(url, bank)


@pytest.fixture(params=[False, True], ids=["bridge", "server"])
async def stage(request: pytest.FixtureRequest, empty: BridgedOffice, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(empty, tmp_path / "bank", PAUSE, by_server=request.param) as stage:
        yield stage


@pytest.fixture
async def patient(empty: BridgedOffice, tmp_path: Path) -> AsyncIterator[Served]:
    """A bridge whose pause no test sees the end of."""
    async with served(empty, tmp_path / "bank", 3000) as stage:
        yield stage


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60) as client:
        yield client


class Session:
    """A session of 2025-11-25, by hand: what each of its requests is, is seen."""

    def __init__(self, http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> None:
        self._http, self._url, self.headers = http, url, headers
        self._number = 10

    @classmethod
    async def begin(cls, http: httpx2.AsyncClient, url: str, **capabilities: Any) -> Session:
        session = cls(http, url, await begun(http, url, **capabilities))
        await until_once_listed(http, url, session.headers, "pay")
        return session

    def call(self, tool: str, **arguments: Any) -> Any:
        """The open stream of a call."""
        self._number += 1
        params = {"name": tool, "arguments": arguments}
        request = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        return self._http.stream("POST", self._url, json=request, headers=self.headers)

    def resumed(self, event_id: str) -> Any:
        return self._http.stream("GET", self._url, headers={**self.headers, "Last-Event-ID": event_id})

    def notices(self) -> Any:
        return self._http.stream("GET", self._url, headers=self.headers)


async def test_what_waits_for_the_owner_is_withdrawn_when_its_client_has_closed_its_stream(
    stage: Served, http: httpx2.AsyncClient
) -> None:
    session, owner = await Session.begin(http, stage.url), stage.bank.owner
    async with session.call("pay", what="rent"):
        await until(lambda: owner.asked)
        assert owner.withdrawn == 0
    await until(lambda: owner.withdrawn == 1)
    owner.answer.set_result("yes")
    async with session.call("pay", what="food") as stream:
        assert "paid" in str(await response_in(stream, 12))
    assert stage.bank.runs == ["pay food"], "a late yes runs nothing"


async def test_a_client_that_is_killed_leaves_nothing_that_waits(stage: Served, mode: Any) -> None:
    owner = stage.bank.owner
    process = await asyncio.create_subprocess_exec(sys.executable, str(CLIENT), stage.url, KEY, mode, "pay")
    await until(lambda: owner.asked)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: owner.withdrawn == 1)
    assert stage.bank.runs == []


async def test_a_call_that_runs_goes_on_without_its_client(stage: Served, http: httpx2.AsyncClient) -> None:
    session, bank = await Session.begin(http, stage.url), stage.bank
    async with session.call("work") as working, session.call("pay"):
        last = await first_event_id(working)
        await until(lambda: bank.runs == ["work"] and bank.owner.asked)
    await until(lambda: bank.owner.withdrawn == 1)
    assert bank.ended == [], "the same pause was over for it"
    bank.go.set()
    async with session.resumed(last) as stream:
        assert "worked" in str(await response_in(stream, 11))


async def test_a_client_that_is_back_in_time_keeps_its_question(patient: Served, http: httpx2.AsyncClient) -> None:
    session, owner = await Session.begin(http, patient.url), patient.bank.owner
    async with session.call("pay") as stream:
        last = await first_event_id(stream)
        await until(lambda: owner.asked)
    async with session.resumed(last) as stream:
        owner.answer.set_result("yes")
        assert "paid" in str(await response_in(stream, 11))
    assert owner.withdrawn == 0


async def test_any_open_stream_of_the_session_counts_and_none_of_another(
    stage: Served, http: httpx2.AsyncClient
) -> None:
    mine, other = [await Session.begin(http, stage.url) for _ in range(2)]
    owner = stage.bank.owner
    async with mine.notices(), other.notices():
        async with mine.call("pay", what="mine"):
            await until(lambda: len(owner.asked) == 1)
        async with other.call("pay", what="other"):
            await until(lambda: len(owner.asked) == 2)
        async with (third := await Session.begin(http, stage.url)).call("pay", what="third"):
            await until(lambda: len(owner.asked) == 3)
        await until(lambda: owner.withdrawn == 1)
        assert third.headers != mine.headers
    await until(lambda: owner.withdrawn == 3)


async def test_a_call_that_asks_the_owner_after_its_client_has_gone_is_withdrawn_too(
    stage: Served, http: httpx2.AsyncClient
) -> None:
    session, bank = await Session.begin(http, stage.url), stage.bank
    async with session.call("work", asks=True), session.call("pay"):
        await until(lambda: bank.runs == ["work"] and bank.owner.asked)
    await until(lambda: bank.owner.withdrawn == 1)
    bank.go.set()
    await until(lambda: bank.person.withdrawn == 1)
    assert len(bank.person.asked) == 1
    await until(lambda: bank.ended == ["work"])


async def test_a_question_to_a_client_that_is_gone_ends_with_its_call(empty: BridgedOffice, tmp_path: Path) -> None:
    bank, told = Bank(asks_owner=False), ""
    bank.go.set()
    async with (
        served(empty, tmp_path / "bank", PAUSE, bank) as stage,
        asyncio.timeout(60),
        httpx2.AsyncClient(timeout=60) as http,
    ):
        session = await Session.begin(http, stage.url, elicitation={})
        async with session.call("work", asks=True) as stream:
            async for told in stream.aiter_lines():
                if "elicitation/create" in told:
                    break
        assert "Who are you?" in told
        assert bank.ended == []
        await until(lambda: bank.ended == ["work"])
