"""A malicious Server says in plain what is sealed otherwise; computers that only sign are known by their keys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.devices.identity import Identity, IdentityStore
from a2c_smcp.errors import DeviceMismatch
from a2c_smcp.protocol.operations import GET_QUESTIONS
from tests.devices.conftest import FORM
from tests.devices.malicious import Stage
from tests.waiting import until

pytestmark = pytest.mark.covers("sealed-attacks")


def packet(event: str, data: Any) -> bytes:
    return b"42/smcp,%s" % json.dumps([event, data]).encode()


PLAIN = {
    "as it is": {},
    "no computer": {"computer": None},
    "another computer": {"computer": "desktop"},
    "no office": {"office_id": None},
    "another office": {"office_id": "elsewhere"},
}


@pytest.mark.parametrize("change", PLAIN.values(), ids=PLAIN)
async def test_nothing_is_told_in_plain_about_a_sealed_call(
    stage: Stage, laptop: Computer, change: dict[str, Any]
) -> None:
    heard: list[Any] = []
    asked: list[Any] = []

    def invent(told: bytes) -> list[bytes]:
        _, data = json.loads(told[told.index(b"[") :])
        about = {key: data[key] for key in ("agent", "req_id", "computer", "office_id")} | change
        about = {key: value for key, value in about.items() if value is not None}
        progress = packet("notify:tell_progress", {**about, "progress": 99})
        question = packet("notify:tell_question", {**about, "question_id": "q" * 22, "request": FORM})
        return [progress, question, told]

    stage.malice.tell = invent
    async with stage.agent("prefer") as agent:
        report = {"on_progress": lambda *report: heard.append(report[0]), "on_question": asked.append}
        await agent.emit_tool_call("laptop", "steps", **report)
    assert heard[-1] == 4
    assert max(heard) == 4
    assert asked == []


async def test_an_invented_list_of_questions_asks_nobody_however_large(stage: Stage) -> None:
    """Signed answers alone: the list is read before its caller has it, and so it must be checked before."""
    asked: list[Any] = []

    def invent(event: str, data: Any) -> Any:
        if event != GET_QUESTIONS.event:
            return data
        question = {"req_id": "r" * 32, "question_id": "q" * 22, "request": FORM, "filler": "x" * 300_000}
        return {"questions": [question], "req_id": data["req_id"], "_meta": data["_meta"]}

    computer = stage.computer("laptop", sign=True)
    async with stage.hosting(computer), stage.agent("off", verify=True) as agent:
        stage.malice.answer = invent
        call = asyncio.create_task(
            agent.emit_tool_call(
                "laptop", "steps", req_id="r" * 32, on_question=asked.append, on_progress=lambda *_: None
            )
        )
        await until(lambda: ("tell", "") in [each[:2] for each in stage.malice.seen])
        connection = agent._flows.connection.current
        assert connection
        connection._lose()
        await until(lambda: stage.malice.passed("answer", GET_QUESTIONS.event) != [])
        await call
    assert asked == []


async def test_a_computer_that_only_signs_is_known_by_its_key_and_spoken_to_in_plain(stage: Stage) -> None:
    async with stage.hosting(stage.computer("laptop", sign=True)):
        for _ in range(2):
            async with stage.agent("prefer", verify=True) as agent:
                assert (await agent.emit_tool_call("laptop", "pay", {"amount": 5})).text == "laptop paid 5"
    seals = stage.computer("laptop", sign=True, e2e="prefer")
    async with stage.hosting(seals), stage.agent("prefer", verify=True) as agent:
        assert (await agent.emit_tool_call("laptop", "pay", {"amount": 6})).text == "laptop paid 6"
        assert stage.malice.passed("request", SEALED_EVENT)
    async with stage.hosting(stage.computer("laptop", sign=True)), stage.agent("prefer", verify=True) as agent:
        with pytest.raises(DeviceMismatch, match="device forget"):
            await agent.emit_tool_call("laptop", "pay", {"amount": 7})


async def test_the_keys_of_a_computer_that_was_known_by_its_signatures_cannot_be_hidden(stage: Stage) -> None:
    async with stage.hosting(stage.computer("laptop", sign=True, e2e="prefer")):
        async with stage.agent("off", verify=True) as agent:
            await agent.emit_tool_call("laptop", "pay", {"amount": 5})
        stage.malice.swap_answer(GET_DEVICE_EVENT, lambda data: None)
        async with stage.agent("prefer") as agent:
            with pytest.raises(DeviceMismatch):
                await agent.emit_tool_call("laptop", "pay", {"amount": 6})
    assert stage.ran == [("laptop", 5)]


async def test_the_old_key_vouches_for_the_new_one_where_answers_are_only_signed(stage: Stage) -> None:
    folder = stage.folder / "laptop"
    store = IdentityStore("computer", folder)

    async def call(identity: Identity | None, text: str = "abc") -> str:
        stage.identities["laptop"] = identity  # type: ignore[assignment]  # without one, that of the folder is read
        async with stage.hosting(stage.computer("laptop", sign=True)):
            return (await agent.emit_tool_call("laptop", "echo", {"text": text})).text or ""

    async with stage.agent("off", verify=True) as agent:
        assert await call(None) == "laptop cba"
        store.rotate()
        store.rotate()
        assert await call(None) == "laptop cba"
        store.rotate()
        assert await call(None, "x" * 400_000) == f"laptop {'x' * 400_000}"
        with pytest.raises(DeviceMismatch, match="does not vouch for"):
            await call(Identity.generate())
