"""A malicious Server reads, changes, replays and invents: with sealed calls it gets nothing and is always noticed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.devices.identity import Identity
from a2c_smcp.devices.known import KnownDevices, KnownPeer
from a2c_smcp.devices.sealing import SealingKey
from a2c_smcp.devices.statement import state
from a2c_smcp.errors import BadRequest, CallTimeout, DeviceMismatch, SealingRequired, SMCPError
from a2c_smcp.registry import AsyncToolContext
from a2c_smcp.smcp import TOOL_CALL_EVENT
from tests.computer.hosted import hosted
from tests.devices.malicious import Malice

pytestmark = pytest.mark.covers("sealed-attacks")

RANDOM = base64.b64encode(os.urandom(96)).decode()


class Stage:
    """A malicious Server, two computers and an agent that trust one another's keys, and what the tools were given."""

    def __init__(self, hub: Any, office: str, folder: Path) -> None:
        self.malice, self.url, self.office, self.folder = Malice(hub.app), hub.url, office, folder
        self.identities = {name: Identity.generate() for name in ("planner", "laptop", "desktop")}
        self.ran: list[tuple[str, Any]] = []

    def trust(self) -> None:
        for name in ("laptop", "desktop"):
            known = KnownDevices(self.folder / name)
            known.trust(self._peer("agent", "planner"), self.identities["planner"].fingerprint)
            KnownDevices(self.folder / "planner").trust(self._peer("computer", name), self.identities[name].fingerprint)

    def _peer(self, role: Any, name: str) -> KnownPeer:
        return KnownPeer(self.url, self.office, role, name)

    def computer(self, name: str, **options: Any) -> Computer:
        folder = self.folder / name
        computer = Computer(name, state_folder=folder, identity=self.identities[name], **options)

        @computer.tool(auto_apply=True)
        async def echo(text: str) -> str:
            self.ran.append((name, text))
            return f"{name} {text[::-1]}"

        @computer.tool(auto_apply=True)
        async def pay(amount: int) -> str:
            self.ran.append((name, amount))
            return f"{name} paid {amount}"

        @computer.tool(auto_apply=True)
        async def steps(context: AsyncToolContext) -> str:
            for step in range(1, 5):
                await context.progress(step, 4, RANDOM)
                await asyncio.sleep(0.2)
            return "done"

        return computer

    def hosting(self, computer: Computer) -> AbstractAsyncContextManager[list[str]]:
        """Has a computer in the office, with its own state."""
        return hosted(computer, self.url, self.office, self.folder / computer.name)

    @asynccontextmanager
    async def agent(self, e2e: str = "require", **options: Any) -> AsyncIterator[AsyncSMCPAgentClient]:
        given = {"identity": self.identities["planner"], "state_folder": self.folder / "planner", **options}
        async with AsyncSMCPAgentClient("planner", url=self.url, office=self.office, e2e=e2e, **given) as agent:
            yield agent


@pytest.fixture
async def stage(serve: Callable[..., Any], office: str, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(await serve(), office, tmp_path)
    stage.trust()
    async with AsyncExitStack() as stack:
        for name in ("laptop", "desktop"):
            computer = stage.computer(name, e2e="require")
            await stack.enter_async_context(hosted(computer, stage.url, office, tmp_path / name))
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


def pieces(text: str) -> list[str]:
    return [text[start : start + 16] for start in range(0, len(text) - 16, 8)]


FIELDS = {
    "another agent": {"agent": "stranger"},
    "another computer": {"computer": "desktop"},
    "another office": {"office_id": "elsewhere"},
    "another id": {"req_id": "f" * 32},
    "another key": {"kid": "A" * 22},
}


@pytest.mark.parametrize("change", FIELDS.values(), ids=FIELDS)
async def test_a_request_whose_address_is_changed_runs_nothing(
    stage: Stage, agent: AsyncSMCPAgentClient, change: dict[str, str]
) -> None:
    await agent.get_tools("laptop")

    def swap(event: str, data: Any) -> Any:
        return {**data, **change} if event == SEALED_EVENT else data

    stage.malice.request = swap
    with pytest.raises(SMCPError):
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert stage.ran == []


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:-8], lambda text: text[:40], lambda text: text[::-1], lambda text: ""]
)
async def test_a_request_that_is_cut_or_spoilt_runs_nothing(
    stage: Stage, agent: AsyncSMCPAgentClient, spoil: Callable[[str], str]
) -> None:
    await agent.get_tools("laptop")
    stage.malice.request = lambda event, data: (
        {**data, "sealed": spoil(data["sealed"])} if event == SEALED_EVENT else data
    )
    with pytest.raises(SMCPError):
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert stage.ran == []


async def test_a_request_that_is_sent_again_runs_nothing(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    assert (await agent.emit_tool_call("laptop", "pay", {"amount": 5})).text == "laptop paid 5"
    first = stage.malice.passed("request", SEALED_EVENT)[-1]
    stage.malice.request = lambda event, data: {**first} if event == SEALED_EVENT else data
    with pytest.raises(SMCPError):
        await agent.emit_tool_call("laptop", "pay", {"amount": 7}, timeout=5)
    assert stage.ran == [("laptop", 5)]


async def test_a_request_for_one_computer_does_nothing_on_another(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.emit_tool_call("laptop", "pay", {"amount": 5})
    first = stage.malice.passed("request", SEALED_EVENT)[-1]
    stage.malice.request = lambda event, data: {**first, "computer": "desktop"} if event == SEALED_EVENT else data
    with pytest.raises(SMCPError):
        await agent.emit_tool_call("desktop", "echo", {"text": "x"}, timeout=5)
    assert stage.ran == [("laptop", 5)]


async def test_an_answer_of_another_call_is_not_taken(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.emit_tool_call("laptop", "echo", {"text": "first"})
    earlier = stage.malice.passed("answer", SEALED_EVENT)[-1]
    stage.malice.answer = lambda event, data: {**data, "sealed": earlier["sealed"]} if event == SEALED_EVENT else data
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
    stage.malice.answer = lambda event, data: answer if event == SEALED_EVENT else data
    with pytest.raises(SMCPError) as raised:
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert isinstance(raised.value, DeviceMismatch) or answer is None


async def test_an_error_of_the_server_is_raised_and_marked(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    refusal = BadRequest("no").to_wire()
    stage.malice.answer = lambda event, data: refusal if event == SEALED_EVENT else data
    with pytest.raises(BadRequest) as raised:
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert raised.value.details["verified"] is False


async def test_a_request_is_not_reflected_as_its_answer(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    stage.malice.answer = lambda event, data: (
        {**data, "sealed": stage.malice.passed("request", SEALED_EVENT)[-1]["sealed"]}
        if event == SEALED_EVENT
        else data
    )
    with pytest.raises(DeviceMismatch):
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)


async def test_keys_of_the_servers_own_are_not_taken(stage: Stage) -> None:
    own, key = Identity.generate(), SealingKey.generate()

    def substitute(event: str, data: Any) -> Any:
        if event != GET_DEVICE_EVENT:
            return data
        asked = stage.malice.passed("request", GET_DEVICE_EVENT)[-1]
        nonce = base64.b64decode(asked["nonce"])
        names = {"office": stage.office, "agent": "planner", "computer": asked["computer"]}
        return {**state(own, key, nonce=nonce, **names, e2e="require"), "req_id": asked["req_id"]}

    stage.malice.answer = substitute
    async with stage.agent() as agent:
        with pytest.raises(DeviceMismatch, match="device forget"):
            await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert stage.malice.passed("request", SEALED_EVENT) == []


async def test_new_keys_in_a_refusal_must_be_those_of_the_device(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    own, key = Identity.generate(), SealingKey.generate()

    def substitute(event: str, data: Any) -> Any:
        if event != SEALED_EVENT:
            return data
        asked = stage.malice.passed("request", SEALED_EVENT)[-1]
        nonce = hashlib.sha256(asked["sealed"].encode()).digest()
        told = state(own, key, nonce=nonce, office=stage.office, agent="planner", computer="laptop", e2e="require")
        return {"code": 421, "message": "Sealed to a key that is not held", "details": {"device": told}}

    stage.malice.answer = substitute
    with pytest.raises(DeviceMismatch):
        await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)


async def test_a_statement_of_another_moment_is_not_taken(stage: Stage, agent: AsyncSMCPAgentClient) -> None:
    await agent.get_tools("laptop")
    old = stage.malice.passed("answer", GET_DEVICE_EVENT)[-1]
    stage.malice.answer = lambda event, data: old if event == GET_DEVICE_EVENT else data
    await agent.disconnect()
    async with stage.agent() as other:
        with pytest.raises(DeviceMismatch):
            await other.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)


UNKNOWN = {"code": 400, "message": "Unsupported event: 'client:get_device'", "details": {}}


@pytest.mark.parametrize("e2e", ["prefer", "require"])
@pytest.mark.parametrize("answer", [UNKNOWN, None], ids=["an error", "nothing"])
async def test_nobody_is_made_to_speak_in_plain(stage: Stage, e2e: str, answer: Any) -> None:
    """With `prefer`, because the computer is known."""
    stage.malice.answer = lambda event, data: answer if event == GET_DEVICE_EVENT else data
    async with stage.agent(e2e) as agent:
        with pytest.raises((DeviceMismatch, SealingRequired)):
            await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert stage.malice.passed("request", TOOL_CALL_EVENT) == []
    assert stage.ran == []


async def test_a_plain_call_in_the_name_of_an_agent_is_refused(stage: Stage) -> None:
    """The Server can send any event to a computer."""
    async with AsyncSMCPAgentClient("planner", url=stage.url, office=stage.office) as agent:
        with pytest.raises(SealingRequired):
            await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
    assert stage.ran == []


async def test_another_agent_of_the_same_name_is_refused(stage: Stage) -> None:
    async with stage.agent(identity=Identity.generate()) as agent:
        with pytest.raises(DeviceMismatch):
            await agent.emit_tool_call("laptop", "pay", {"amount": 5}, timeout=5)
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
