"""Clients of one bridge: none sees what belongs to another."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from a2c_smcp.bridge.serving.sessions import KeptEvents
from tests.stage.bridge import BridgedOffice, Heard, subscribed, until_listed, until_told
from tests.stage.texts import text_of
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-apart")


async def test_two_clients_have_their_own_progress_logs_questions_and_subscriptions(
    bridged: BridgedOffice, bridge: Any, mode: Any
) -> None:
    """Over stdio, the second bridge goes through the first."""
    ada, bob = Heard("Ada"), Heard("Bob")
    async with bridged.user(bridge, mode, ada) as first, bridged.client(bridge, mode, bob) as second:
        greetings = await asyncio.gather(first.call_tool("greet", {}), second.call_tool("greet", {}))
        assert [text_of(each) for each in greetings] == ["hi Ada, asked 'Who are you?'", "hi Bob, asked 'Who are you?'"]
        await first.call_tool("steps", {"count": 3}, progress_callback=ada.report)
        await until(lambda: len(ada.logs) == 3)
        assert ada.progress[-1] == (3, 3, "step 3")
        await second.call_tool("add", {"a": 1, "b": 2}, progress_callback=bob.report)
        assert (bob.progress, bob.logs) == ([], [])
        waiting, other = await bridged.waiting(first, "ada"), await bridged.waiting(second, "bob")
        waiting.cancel()
        await bridged.is_cancelled("ada")
        assert not other.done()
        other.cancel()
        await bridged.is_cancelled("bob")


async def test_logs_are_for_nobody_while_two_clients_have_calls_at_one_mcp_server(
    bridged: BridgedOffice, bridge: Any, mode: Any
) -> None:
    ada = Heard("Ada")
    async with bridged.user(bridge, mode, ada) as first, bridged.user(bridge, mode) as second:
        other = await bridged.waiting(second, "bob")
        await first.call_tool("steps", {"count": 3})
        other.cancel()
        await bridged.is_cancelled("bob")
        assert ada.logs == []
        await first.call_tool("steps", {"count": 2})
        await until(lambda: len(ada.logs) == 2)


async def test_a_client_is_told_only_of_its_own_subscriptions(bridged: BridgedOffice, bridge: Any) -> None:
    ada, bob = Heard("Ada"), Heard("Bob")
    async with bridged.client(bridge, "legacy", ada) as first, bridged.user(bridge, "legacy", bob) as second:
        await until_listed(first, "notes://page")
        await subscribed(first, "notes://page")
        await until_told(second, ada, "notes://page", "write", {"text": "second"})
        await second.list_tools()  # it has heard all that was sent to it before
        assert bob.updated == []


async def test_the_state_of_a_question_is_bound_to_its_call(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge()
    async with bridged.user(url) as client:
        asked = await client.session.call_tool("greet", {}, allow_input_required=True)
        assert asked.request_state
        (key,) = asked.input_requests or {}
        answers: Any = {key: types.ElicitResult(action="accept", content={"name": "Eve"})}
        forged = asked.request_state.swapcase()  # not only its last characters: base64 does not use all of their bits
        for state, tool in ((forged, "greet"), (asked.request_state, "chart")):
            with pytest.raises(MCPError, match="requestState"):
                await client.session.call_tool(tool, {}, input_responses=answers, request_state=state)
        done = await client.session.call_tool("greet", {}, input_responses=answers, request_state=asked.request_state)
        assert text_of(done) == "hi Eve"


async def test_a_session_is_never_sent_messages_of_another_and_old_ones_are_dropped() -> None:
    kept = KeptEvents(10_000)
    ours, theirs = kept.session(), kept.session()
    message = types.JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "x" * 100})
    stored = [
        await to.store_event(stream, message) for to, stream in ((ours, "1"), (theirs, "1"), (ours, "2"), (ours, "1"))
    ]
    first, foreign, _, second = stored
    sent: list[str | None] = []

    async def send(event: Any) -> None:
        sent.append(event.event_id)

    assert await ours.replay_events_after(first, send) == "1"
    assert sent == [second]
    assert [await ours.replay_events_after(other, send) for other in (foreign, "nonsense")] == [None, None]
    for _ in range(100):
        await theirs.store_event("1", message)
    assert await ours.replay_events_after(first, send) is None
    assert sent == [second]
