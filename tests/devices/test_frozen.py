"""A computer that seals and is frozen: it refuses sealed requests in their seals, and answers none a second time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.audit.observers import Observed
from a2c_smcp.computer import Computer
from a2c_smcp.computer.observation import ToolCallEnded
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.errors import CallFrozen, Frozen, SMCPError
from tests.devices.malicious import Stage
from tests.waiting import until

pytestmark = pytest.mark.covers("computer-freeze", "sealed-attacks")


async def test_a_sealed_request_is_refused_in_its_seal_and_may_be_sent_again_later(
    stage: Stage, laptop: Computer
) -> None:
    async with stage.agent("prefer") as agent:
        await agent.emit_tool_call("laptop", "pay", {"amount": 1})
        laptop.owner.freeze("closed")
        with pytest.raises(Frozen) as refusal:
            await agent.emit_tool_call("laptop", "pay", {"amount": 2})
        assert (refusal.value.outcome, refusal.value.details["reason"]) == ("not_run", "closed")
        refused = stage.malice.passed("request", SEALED_EVENT)[-1]
        with pytest.raises(Frozen):
            await agent.get_skills("laptop")
        assert all(answer.keys() == {"req_id", "sealed"} for answer in stage.malice.passed("answer", SEALED_EVENT))
        laptop.owner.thaw()
        stage.malice.swap_request(SEALED_EVENT, lambda data: {**refused})
        with pytest.raises(SMCPError):  # it is the answer to another request
            await agent.emit_tool_call("laptop", "pay", {"amount": 3}, timeout=5)
    assert stage.ran == [("laptop", 1), ("laptop", 2)]


async def test_an_answer_that_is_kept_is_not_told_again_while_it_is_frozen(stage: Stage, laptop: Computer) -> None:
    ended: list[Observed] = []
    laptop.observation.add(ended.append, often=True)
    async with stage.agent("prefer") as agent:
        await agent.emit_tool_call("laptop", "pay", {"amount": 1})
        first = stage.malice.passed("request", SEALED_EVENT)[-1]
        stage.malice.swap_request(SEALED_EVENT, lambda data: {**first})
        laptop.owner.freeze()
        with pytest.raises(SMCPError):
            await agent.emit_tool_call("laptop", "pay", {"amount": 2}, timeout=5)
        results = [each.result for each in ended if isinstance(each, ToolCallEnded)]
        assert [(result.code, result.ran) for result in results] == [(None, None), (423, "unknown")]
        laptop.owner.thaw()
        with pytest.raises(SMCPError):
            await agent.emit_tool_call("laptop", "pay", {"amount": 3}, timeout=5)
    assert stage.ran == [("laptop", 1)]


async def test_a_sealed_call_that_runs_is_cancelled_in_its_seal(stage: Stage, laptop: Computer) -> None:
    async with stage.agent("prefer") as agent:
        running = asyncio.create_task(agent.emit_tool_call("laptop", "steps", timeout=60))
        await until(lambda: laptop.history)
        laptop.owner.freeze("enough")
        with pytest.raises(CallFrozen) as cancelled:
            await running
        assert cancelled.value.details["reason"] == "enough"


async def test_an_agent_that_asks_a_frozen_computer_for_its_keys_sends_nothing_in_plain(
    stage: Stage, laptop: Computer
) -> None:
    laptop.owner.freeze()
    async with stage.agent("prefer") as agent:
        with pytest.raises(Frozen):
            await agent.emit_tool_call("laptop", "pay", {"amount": 1}, timeout=5)
        asked: list[Any] = [event for kind, event, _ in stage.malice.seen if kind == "request"]
        assert {*asked} == {GET_DEVICE_EVENT}
        laptop.owner.thaw()
        assert (await agent.emit_tool_call("laptop", "pay", {"amount": 1}, timeout=5)).text == "laptop paid 1"
