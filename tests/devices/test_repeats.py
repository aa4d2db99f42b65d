"""A malicious Server has what was sealed done and told a second time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.device import Remembered, ReplySeal, RequestKey, SealedRequests
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.device_events import SEALED_EVENT
from a2c_smcp.devices.signing import new_reply
from a2c_smcp.devices.transcript import CallAddress
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol.questions import Answer
from tests.computer.hosted import joins
from tests.devices.malicious import Stage
from tests.waiting import until

pytestmark = pytest.mark.covers("sealed-attacks")


class Noticed:
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_notice(self, event: str, data: dict[str, Any]) -> None:
        self.events.append(event)


async def test_a_server_that_invents_new_keys_has_nothing_done_or_told_twice(stage: Stage, laptop: Computer) -> None:
    """The computer has just made a new key, and still accepts the one before. The Server asks it for a statement with
    the nonce that the agent expects, which is genuine, and then repeats what was told."""
    told: list[bytes] = []
    lies: list[Any] = []

    def lie(event: str, data: Any) -> Any:
        if event != SEALED_EVENT or lies or data["req_id"] != "r" * 32:
            return data
        asked = next(each for each in stage.malice.passed("request", SEALED_EVENT) if each["req_id"] == "r" * 32)
        assert laptop.agents.device
        laptop.agents.device._made -= 13 * 3600
        nonce = hashlib.sha256(asked["sealed"].encode()).digest()
        device = laptop.agents.device.statement(nonce, stage.office, "planner", "laptop")
        lies.append(device)
        return {"code": 421, "message": "Sealed to a key that is not held", "details": {"device": device}}

    def keep(each: bytes) -> list[bytes]:
        told.append(each)
        return [each]

    noticed = Noticed()
    async with stage.agent("prefer", event_handler=noticed) as agent:
        stage.malice.tell, stage.malice.answer = keep, lie
        call = asyncio.create_task(agent.emit_tool_call("laptop", "ask", questions=True, req_id="r" * 32))
        await until(lambda: "notify:tell_question" in noticed.events)
        stage.malice.request = lambda event, data: data if not lies else repeated(data)
        sid = next(iter(stage.malice.tells))

        def repeated(data: Any) -> Any:
            for each in told:
                stage.malice.send(sid, stage.office, each)
            return data

        (question,) = await agent.get_questions("laptop")
        await agent.answer_question("laptop", question.question_id, Answer("decline"))
        assert (await call).text == "decline"
        assert lies
        await agent.emit_tool_call("laptop", "pay", {"amount": 5})
        first = stage.malice.passed("request", SEALED_EVENT)[-1]
        stage.malice.swap_request(SEALED_EVENT, lambda data: {**first})
        with pytest.raises(SMCPError):
            await agent.emit_tool_call("laptop", "pay", {"amount": 7}, timeout=5)
    assert noticed.events.count("notify:tell_question") == 1
    assert stage.ran == [("laptop", 5)]


async def test_a_request_of_an_earlier_stay_runs_nothing(stage: Stage) -> None:
    """The computer leaves the office and comes back when its journal has forgotten what ran."""
    computer = stage.computer("laptop", e2e="prefer")

    @asynccontextmanager
    async def stay() -> AsyncIterator[None]:
        said: list[str] = []
        client = SMCPComputerClient(
            computer, stage.url, stage.office, instance="i" * 32, journal=Journal(), on_connection=said.append
        )
        serving = asyncio.create_task(client.run())
        await until(lambda: joins(said) > 0)
        try:
            yield
        finally:
            await cancel_and_wait(serving)

    async with computer, stage.agent("prefer") as agent:
        await computer.start()
        async with stay():
            assert (await agent.emit_tool_call("laptop", "pay", {"amount": 5})).text == "laptop paid 5"
        first = stage.malice.passed("request", SEALED_EVENT)[-1]
        async with stay():
            stage.malice.swap_request(SEALED_EVENT, lambda data: {**first})
            with pytest.raises(SMCPError):
                await agent.emit_tool_call("laptop", "pay", {"amount": 7}, timeout=5)
    assert stage.ran == [("laptop", 5)]


def test_a_request_is_remembered_until_the_last_key_that_it_was_sealed_to_ends() -> None:
    address = CallAddress("desk", "planner", "laptop", "r-1")
    key, requests = RequestKey("A" * 43, address), SealedRequests()
    requests.begin(key, Remembered(b"digest", "first", ReplySeal(new_reply(), address)))
    requests.keep(key, b"answer")
    assert requests.find(key, b"digest", "second")
    requests.forget_key("first")
    found = requests.find(key, b"digest", "second")
    assert found
    assert found.answer == b"answer"
    requests.forget_key("second")
    assert requests.find(key, b"digest", "third") is None


async def test_many_requests_end_a_key_and_not_the_service(stage: Stage, laptop: Computer) -> None:
    device = laptop.agents.device
    assert device
    device.requests._most = 5
    async with stage.agent("prefer") as agent:
        for amount in range(20):
            assert (await agent.emit_tool_call("laptop", "pay", {"amount": amount})).text == f"laptop paid {amount}"
        assert len({each["kid"] for each in stage.malice.passed("request", SEALED_EVENT)}) > 3
        first = stage.malice.passed("request", SEALED_EVENT)[0]
        stage.malice.swap_request(SEALED_EVENT, lambda data: {**first})
        with pytest.raises(SMCPError):
            await agent.emit_tool_call("laptop", "pay", {"amount": 99}, timeout=5)
    assert stage.ran == [("laptop", amount) for amount in range(20)]
