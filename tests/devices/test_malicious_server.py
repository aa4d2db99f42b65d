"""A malicious Server reads, changes, replays and invents: with sealed calls it gets nothing and is always noticed."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.devices.identity import Identity
from a2c_smcp.devices.signing import SealingKey, state
from a2c_smcp.errors import BadRequest, CallTimeout, DeviceMismatch, SealingRequired, SMCPError
from a2c_smcp.smcp import TOOL_CALL_EVENT
from tests.computer.hosted import hosted
from tests.devices.malicious import RANDOM, Stage, pieces

pytestmark = pytest.mark.covers("sealed-attacks")


@pytest.fixture
async def stage(serve: Callable[..., Any], office: str, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(await serve(), office, tmp_path)
    stage.trust()
    async with AsyncExitStack() as stack:
        for name in ("laptop", "desktop"):
            await stack.enter_async_context(stage.hosting(stage.computer(name, e2e="require")))
        yield stage


@pytest.fixture
async def agent(stage: Stage) -> AsyncIterator[AsyncSMCPAgentClient]:
    async with stage.agent() as agent:
        yield agent


async def test_nothing_that_is_said_can_be_read(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    result = await agent.emit_tool_call("laptop", "echo", {"text": RANDOM}, on_progress=lambda *_: None)
    assert result.text == f"laptop {RANDOM[::-1]}"
    await agent.emit_tool_call("laptop", "steps", on_progress=lambda *_: None)
    await agent.get_tools("laptop")
    await agent.get_config("laptop")
    seen = json.dumps([data if not isinstance(data, bytes) else data.decode() for *_, data in stage.malice.seen])
    assert "sealed" in seen
    for text in (RANDOM, RANDOM[::-1]):
        assert not [piece for piece in pieces(text) if piece in seen]
    assert "echo" not in seen
    assert {name for kind, name, _ in stage.malice.seen if kind == "request"} == {SEALED_EVENT, GET_DEVICE_EVENT}


PAY = ("laptop", "pay", {"amount": 5}, 5)
CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another agent": lambda data: {**data, "agent": "stranger"},
    "another computer": lambda data: {**data, "computer": "desktop"},
    "another office": lambda data: {**data, "office_id": "elsewhere"},
    "another id": lambda data: {**data, "req_id": "f" * 32},
    "another key": lambda data: {**data, "kid": "A" * 22},
    "without its end": lambda data: {**data, "sealed": data["sealed"][:-8]},
    "only its head": lambda data: {**data, "sealed": data["sealed"][:40]},
    "reversed": lambda data: {**data, "sealed": data["sealed"][::-1]},
    "empty": lambda data: {**data, "sealed": ""},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_request_that_is_changed_runs_nothing(
    stage: Stage, agent: AsyncSMCPAgentClient, change: Callable[[Any], Any]
) -> None:
    await agent.get_tools("laptop")
    stage.malice.swap_request(SEALED_EVENT, change)
    with pytest.raises(SMCPError):
        await agent.emit_tool_call(*PAY)
    assert stage.ran == []


@pytest.mark.parametrize("computer", ["laptop", "desktop"])
async def test_a_request_that_is_sent_again_runs_nothing_there_or_elsewhere(
    stage: Stage, agent: AsyncSMCPAgentClient, computer: str
) -> None:
    assert (await agent.emit_tool_call(*PAY)).text == "laptop paid 5"
    first = stage.malice.passed("request", SEALED_EVENT)[-1]
    stage.malice.swap_request(SEALED_EVENT, lambda data: {**first, "computer": computer})
    with pytest.raises(SMCPError):
        await agent.emit_tool_call(computer, "pay", {"amount": 7}, timeout=5)
    assert stage.ran == [("laptop", 5)]


async def test_an_answer_of_another_call_is_not_taken(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.emit_tool_call("laptop", "echo", {"text": "first"})
    earlier = stage.malice.passed("answer", SEALED_EVENT)[-1]
    stage.malice.swap_answer(SEALED_EVENT, lambda data: {**data, "sealed": earlier["sealed"]})
    with pytest.raises(DeviceMismatch) as raised:
        await agent.emit_tool_call("laptop", "echo", {"text": "second"})
    assert raised.value.outcome == "unknown"


INVENTED = {
    "a result": {"content": [{"type": "text", "text": "paid"}], "isError": False},
    "an empty result": {},
    "nothing": None,
    "a list": [1],
    "an error of a tool": {"content": [], "isError": True},
    "an error with a code of a computer": {"code": 4006, "message": "sign in", "details": {}},
}


@pytest.mark.parametrize("answer", INVENTED.values(), ids=INVENTED)
async def test_an_answer_that_is_made_up_is_not_taken(stage: Stage, agent: AsyncSMCPAgentClient, answer: Any) -> None:
    await agent.get_tools("laptop")
    stage.malice.swap_answer(SEALED_EVENT, lambda data: answer)
    with pytest.raises(SMCPError) as raised:
        await agent.emit_tool_call(*PAY)
    assert isinstance(raised.value, DeviceMismatch) or answer is None


async def test_an_error_of_the_server_is_raised_and_marked(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    refusal = BadRequest("no").to_wire()
    stage.malice.swap_answer(SEALED_EVENT, lambda data: refusal)
    with pytest.raises(BadRequest) as raised:
        await agent.emit_tool_call(*PAY)
    assert raised.value.details["verified"] is False


async def test_a_request_is_not_reflected_as_its_answer(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    asked = stage.malice.passed
    stage.malice.swap_answer(
        SEALED_EVENT, lambda data: {**data, "sealed": asked("request", SEALED_EVENT)[-1]["sealed"]}
    )
    with pytest.raises(DeviceMismatch):
        await agent.emit_tool_call(*PAY)


async def test_keys_of_the_servers_own_are_not_taken(stage: Stage) -> None:
    own, key = Identity.generate(), SealingKey.generate()

    def substitute(data: Any) -> Any:
        asked = stage.malice.passed("request", GET_DEVICE_EVENT)[-1]
        nonce = base64.b64decode(asked["nonce"])
        names = {"office": stage.office, "agent": "planner", "computer": asked["computer"]}
        return {**state(own, key, nonce=nonce, **names, e2e="require"), "req_id": asked["req_id"]}

    stage.malice.swap_answer(GET_DEVICE_EVENT, substitute)
    async with stage.agent() as agent:
        with pytest.raises(DeviceMismatch, match="device forget"):
            await agent.emit_tool_call(*PAY)
    assert stage.malice.passed("request", SEALED_EVENT) == []


async def test_new_keys_in_a_refusal_must_be_those_of_the_device(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    own, key = Identity.generate(), SealingKey.generate()

    def substitute(data: Any) -> Any:
        asked = stage.malice.passed("request", SEALED_EVENT)[-1]
        nonce = hashlib.sha256(asked["sealed"].encode()).digest()
        told = state(own, key, nonce=nonce, office=stage.office, agent="planner", computer="laptop", e2e="require")
        return {"code": 421, "message": "Sealed to a key that is not held", "details": {"device": told}}

    stage.malice.swap_answer(SEALED_EVENT, substitute)
    with pytest.raises(DeviceMismatch):
        await agent.emit_tool_call(*PAY)


async def test_a_statement_of_another_moment_is_not_taken(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    old = stage.malice.passed("answer", GET_DEVICE_EVENT)[-1]
    stage.malice.swap_answer(GET_DEVICE_EVENT, lambda data: old)
    await agent.disconnect()
    async with stage.agent() as other:
        with pytest.raises(DeviceMismatch):
            await other.emit_tool_call(*PAY)


UNKNOWN = {"code": 400, "message": "Unsupported event: 'client:get_device'", "details": {}}


@pytest.mark.parametrize("e2e", ["prefer", "require"])
@pytest.mark.parametrize("answer", [UNKNOWN, None], ids=["an error", "nothing"])
async def test_nobody_is_made_to_speak_in_plain(stage: Stage, e2e: str, answer: Any) -> None:
    """With `prefer`, because the computer is known."""
    stage.malice.swap_answer(GET_DEVICE_EVENT, lambda data: answer)
    async with stage.agent(e2e) as agent:
        with pytest.raises((DeviceMismatch, SealingRequired)):
            await agent.emit_tool_call(*PAY)
    assert stage.malice.passed("request", TOOL_CALL_EVENT) == []
    assert stage.ran == []


async def test_a_plain_call_in_the_name_of_an_agent_is_refused(stage: Stage) -> None:
    """The Server can send any event to a computer."""
    async with AsyncSMCPAgentClient("planner", url=stage.url, office=stage.office) as agent:
        with pytest.raises(SealingRequired):
            await agent.emit_tool_call(*PAY)
    assert stage.ran == []


async def test_another_agent_of_the_same_name_is_refused(stage: Stage) -> None:
    async with stage.agent(identity=Identity.generate()) as agent:
        with pytest.raises(DeviceMismatch):
            await agent.emit_tool_call(*PAY)
    assert stage.ran == []


async def test_notices_cannot_be_repeated_reordered_or_made_up(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    heard: list[Any] = []
    kept: list[bytes] = []

    def torment(packet: bytes) -> list[bytes]:
        kept.append(packet)
        event, told = json.loads(packet[packet.index(b"[") :])
        plain = {key: value for key, value in told.items() if key not in ("sealed", "seq")}
        invented = [{**told, "seq": 99}, {**plain, "progress": 99}]
        return [packet, packet, kept[0], *(b"42/smcp,%s" % json.dumps([event, each]).encode() for each in invented)]

    stage.malice.tell = torment
    await agent.emit_tool_call("laptop", "steps", on_progress=lambda *report: heard.append(report[0]))
    assert heard == sorted(set(heard))
    assert heard[-1] == 4


async def test_what_is_dropped_ends_in_a_timeout(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    stage.malice._answered = lambda *_: None
    with pytest.raises(CallTimeout):
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=1)


async def test_with_prefer_only_the_first_contact_trusts(
    serve: Callable[..., Any], office: str, tmp_path: Path
) -> None:
    stage = Stage(await serve(), office, tmp_path)
    async with hosted(stage.computer("laptop", e2e="prefer"), stage.url, office, tmp_path / "laptop"):
        async with stage.agent("prefer") as agent:
            assert (await agent.emit_tool_call("laptop", "pay", {"amount": 5})).text == "laptop paid 5"
        async with AsyncSMCPAgentClient("planner", url=stage.url, office=office) as plain:
            with pytest.raises(SealingRequired, match="device forget"):
                await plain.emit_tool_call("laptop", "pay", {"amount": 6})
        async with stage.agent("prefer", identity=Identity.generate()) as other:
            with pytest.raises(DeviceMismatch):
                await other.emit_tool_call("laptop", "pay", {"amount": 7})
    stage.identities["laptop"] = Identity.generate()
    async with (
        hosted(stage.computer("laptop", e2e="prefer"), stage.url, office, tmp_path / "another"),
        stage.agent("prefer") as agent,
    ):
        with pytest.raises(DeviceMismatch, match="another device uses its name"):
            await agent.emit_tool_call("laptop", "pay", {"amount": 8})
    assert stage.ran == [("laptop", 5)]
