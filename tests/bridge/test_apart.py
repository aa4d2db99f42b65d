"""Clients of one bridge: none sees what belongs to another."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from a2c_smcp.bridge.serving.sessions import KeptEvents
from tests.bridge.offices import BridgedOffice, Heard, text_of
from tests.bridge.test_through import all_tools, until_listed, until_told
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-apart")


async def test_two_clients_have_their_own_progress_logs_questions_and_subscriptions(
    bridged: BridgedOffice, mode: Any
) -> None:
    _, url = await bridged.start_bridge()
    ada, bob = Heard("Ada"), Heard("Bob")
    async with bridged.client(url, mode, ada) as first, bridged.client(url, mode, bob) as second:
        await all_tools(first)
        greetings = await asyncio.gather(first.call_tool("greet", {}), second.call_tool("greet", {}))
        assert [text_of(each) for each in greetings] == [
            "hi Ada, asked 'Who are you?'",
            "hi Bob, asked 'Who are you?'",
        ]
        await first.call_tool("steps", {"count": 3}, progress_callback=ada.report)
        await until(lambda: len(ada.logs) == 3)
        assert ada.progress[-1] == (3, 3, "step 3")
        await second.call_tool("add", {"a": 1, "b": 2}, progress_callback=bob.report)
        assert (bob.progress, bob.logs) == ([], [])
        waiting = asyncio.create_task(first.call_tool("wait", {"name": "ada"}))
        other = asyncio.create_task(second.call_tool("wait", {"name": "bob"}))
        await until(lambda: {"begun ada", "begun bob"} <= {*bridged.noted()})
        waiting.cancel()
        await until(lambda: "cancelled ada" in bridged.noted())
        assert not other.done()
        other.cancel()
        await until(lambda: "cancelled bob" in bridged.noted())


async def test_a_client_is_told_only_of_its_own_subscriptions(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge()
    ada, bob = Heard("Ada"), Heard("Bob")
    async with bridged.client(url, "legacy", ada) as first, bridged.client(url, "legacy", bob) as second:
        await all_tools(second)
        await until_listed(first, "notes://page")
        wanted = types.SubscribeRequest(params=types.SubscribeRequestParams(uri="notes://page"))
        await first.session.send_request(wanted, types.EmptyResult)
        await until_told(second, ada, "notes://page", "write", {"text": "second"})
        await second.list_tools()  # it has heard all that was sent to it before
        assert not any(isinstance(each, types.ResourceUpdatedNotification) for each in bob.messages)


async def test_the_state_of_a_question_is_bound_to_its_call(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge()
    async with bridged.client(url, "auto") as client:
        await all_tools(client)
        asked = await client.session.call_tool("greet", {}, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        assert asked.request_state
        (key,) = asked.input_requests or {}
        answers: Any = {key: types.ElicitResult(action="accept", content={"name": "Eve"})}
        for state, tool in ((asked.request_state[:-2] + "AA", "greet"), (asked.request_state, "chart")):
            with pytest.raises(MCPError, match="requestState"):
                await client.session.call_tool(tool, {}, input_responses=answers, request_state=state)
        done = await client.session.call_tool("greet", {}, input_responses=answers, request_state=asked.request_state)
        assert text_of(done) == "hi Eve"


async def test_a_session_is_never_sent_messages_of_another_and_old_ones_are_dropped() -> None:
    kept = KeptEvents(10_000)
    ours, theirs = kept.session(), kept.session()
    message = types.JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "x" * 100})
    first = await ours.store_event("1", message)
    foreign = await theirs.store_event("1", message)
    await ours.store_event("2", message)
    second = await ours.store_event("1", message)
    sent: list[str | None] = []

    async def send(event: Any) -> None:
        sent.append(event.event_id)

    assert await ours.replay_events_after(first, send) == "1"
    assert sent == [second]
    assert await ours.replay_events_after(foreign, send) is None
    assert await ours.replay_events_after("nonsense", send) is None
    for _ in range(100):
        await theirs.store_event("1", message)
    assert await ours.replay_events_after(first, send) is None
    assert sent == [second]
