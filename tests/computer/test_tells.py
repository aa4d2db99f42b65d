"""Tells: whether the Server carries them, their rates, progress, and logs of MCP servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest

from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.computer.tells import CallTells, Delivery, ServerLogs, TellKind, Tells
from a2c_smcp.connection import LOST
from a2c_smcp.errors import BadRequest, ComputerNotFound, RateLimited, UnsupportedEvent
from a2c_smcp.mcp_host.limits import Rate
from a2c_smcp.mcp_host.sessions.server_info import LogMessage
from tests.waiting import until

pytestmark = pytest.mark.covers("tells-sent", "tells-progress", "logs-told")

PLANNER = Caller("desk", "planner")


class Line:
    """A connection whose acks the test decides."""

    def __init__(self, ack: Any = None, *, answers: bool = True) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.ack = ack
        self.answers = answers

    def post(self, event: str, data: dict[str, Any], then: Callable[[Any], None]) -> None:
        self.sent.append((event, data))
        if self.answers:
            asyncio.get_running_loop().call_soon(then, self.ack)


DELIVERED = {"delivered": True}


async def test_a_tell_is_sent_to_its_agent_at_once_and_without_a_connection_not_at_all() -> None:
    tells, line, became = Tells("laptop", Mask()), Line(DELIVERED), list[Delivery]()
    tells.tell(PLANNER, "log", {"level": "info"}, became.append)
    assert (became, tells.are_carried("desk")) == ([Delivery.LOST], True)
    with tells.connected("desk", line):
        tells.tell(PLANNER, "log", {"level": "info"}, became.append)
        assert line.sent == [("server:tell_log", {"agent": "planner", "computer": "laptop", "level": "info"})]
        tells.tell(Caller("other", "planner"), "log", {})
        await until(lambda: became == [Delivery.LOST, Delivery.DELIVERED])
    assert len(line.sent) == 1


@pytest.mark.parametrize("ack", [None, {}, [], "yes", {"delivered": 0}, (1, 2), UnsupportedEvent("x").to_wire()])
async def test_any_other_ack_means_that_tells_are_not_carried_until_the_next_connection(ack: Any) -> None:
    tells, line, became, told = Tells("laptop", Mask()), Line(ack), list[Delivery](), list[str]()
    tells.on_not_carried.append(told.append)
    with tells.connected("desk", line):
        for _ in range(2):
            tells.tell(PLANNER, "question", {}, became.append)
        await until(lambda: len(became) == 2)
        tells.tell(PLANNER, "question", {}, became.append)
        assert (became, told, len(line.sent)) == ([Delivery.NOT_CARRIED] * 3, ["desk"], 2)
        assert not tells.are_carried("desk")
    with tells.connected("desk", Line(DELIVERED)):
        assert tells.are_carried("desk")


NOT_FOUND, TOO_MANY, UNTOLD = ComputerNotFound("x").to_wire(), RateLimited("x").to_wire(), {"delivered": False}
LOSES = [
    (NOT_FOUND, Delivery.UNDELIVERED),
    ({"delivered": False}, Delivery.UNDELIVERED),
    (TOO_MANY, Delivery.LATER),
    (LOST, Delivery.LOST),
]


@pytest.mark.parametrize(("ack", "became"), LOSES, ids=["not found", "another seat", "too many", "a lost connection"])
async def test_an_error_of_a_server_that_carries_tells_loses_one_tell_only(ack: Any, became: Delivery) -> None:
    tells, line, seen = Tells("laptop", Mask()), Line(ack), list[Delivery]()
    with tells.connected("desk", line):
        tells.tell(PLANNER, "question", {}, seen.append)
        await until(lambda: seen == [became])
        assert tells.are_carried("desk")


@pytest.mark.covers("tells-sent", "secrets-masked")
@pytest.mark.parametrize("kind", get_args(TellKind))
async def test_a_tell_is_masked_as_it_leaves_whatever_it_is_about(kind: TellKind) -> None:
    tells, line = Tells("laptop", Mask(["t0ken-0123456789", "sunflower"])), Line(DELIVERED)
    told = {"req_id": "sunflower", "mcp_server": "sunflower", "message": "a sunflower", "other": ["t0ken-0123456789"]}
    with tells.connected("desk", line):
        tells.tell(PLANNER, kind, told)
    ((_, sent),) = line.sent
    assert sent["other"] == ["***"]
    assert (sent["message"], sent["req_id"], sent["mcp_server"]) == ("a ***", "sunflower", "sunflower")


async def test_a_server_that_does_not_answer_within_its_time_does_not_carry_tells() -> None:
    tells, became = Tells("laptop", Mask(), ack_timeout=0.05), list[Delivery]()
    with tells.connected("desk", Line(answers=False)):
        tells.tell(PLANNER, "question", {}, became.append)
        await until(lambda: became == [Delivery.NOT_CARRIED])
        assert not tells.are_carried("desk")


async def test_progress_and_logs_over_their_rates_are_dropped_and_counted_and_questions_are_not() -> None:
    tells, line, began = Tells("laptop", Mask()), Line(DELIVERED), time.monotonic()
    with tells.connected("desk", line):
        for _ in range(200):
            tells.tell(PLANNER, "log", {})
            tells.tell(PLANNER, "progress", {})
        for _ in range(100):
            tells.tell(PLANNER, "question", {})
    kinds = [event for event, _ in line.sent]
    logs, progress = kinds.count("server:tell_log"), kinds.count("server:tell_progress")
    seconds = 1 + time.monotonic() - began  # as many are allowed at once as in a second
    assert 50 <= logs <= 50 * seconds + 1
    assert 150 <= logs + progress <= 150 * seconds + 1
    assert kinds.count("server:tell_question") == 100
    assert tells.dropped["log"] + logs == 200


def test_a_rate_allows_so_many_at_once_and_then_so_many_a_second() -> None:
    now = 0.0
    rate = Rate(10, lambda: now)
    assert [rate.allows() for _ in range(12)] == [True] * 10 + [False] * 2
    now = 0.5
    assert [rate.allows() for _ in range(6)] == [True] * 5 + [False]
    now = 100.0
    assert sum(rate.allows() for _ in range(100)) == 10


async def test_of_many_reports_the_first_are_told_then_five_a_second_and_the_last_one_before_the_end() -> None:
    tells, line = Tells("laptop", Mask()), Line(DELIVERED)
    with tells.connected("desk", line):
        progress = CallTells(tells, PLANNER, "r1", progress=True)
        for step in range(1000):
            progress.report(step, 1000, None)
        assert len(line.sent) == 4
        await until(lambda: len(line.sent) == 5)
        progress.report(1000, 1000, "done")
        progress.end()
    told = [data["progress"] for _, data in line.sent]
    assert (told, line.sent[-1][1]["message"]) == ([0, 1, 2, 3, 999, 1000], "done")


async def test_the_state_of_a_quick_call_is_not_told() -> None:
    tells, line = Tells("laptop", Mask()), Line(DELIVERED)
    with tells.connected("desk", line):
        telling = CallTells(tells, PLANNER, "r1", progress=True)
        telling.changed("queued", "the MCP server 'good'")
        telling.changed("running", "")
        telling.end()
        await asyncio.sleep(0)
    assert line.sent == []


@pytest.mark.covers("call-states", "9-tell_state")
@pytest.mark.parametrize("progress", [False, True])
async def test_of_many_states_the_last_one_is_told_and_again_if_it_was_refused(progress: bool) -> None:
    tells, line = Tells("laptop", Mask()), Line(RateLimited().to_wire())
    with tells.connected("desk", line):
        telling = CallTells(tells, PLANNER, "r1", progress=progress)
        telling.report(1, 2, None)
        assert len(line.sent) == progress
        for _ in range(1000):
            telling.changed("running", "")
            telling.changed("waiting", "the owner of laptop")
        await until(lambda: len(line.sent) == progress + 2)
        telling.end()
    for event, told in line.sent[progress:]:
        assert event == "server:tell_state"
        assert (told["req_id"], told["state"], told["reason"]) == ("r1", "waiting", "the owner of laptop")


# Logs of MCP servers

OTHER = Caller("desk", "other")
SECRET = "a secret of some length 123"


def test_the_history_is_bounded_filtered_by_level_and_masked_when_it_is_shown() -> None:
    mask = Mask()
    logs = ServerLogs(Tells("laptop", Mask()), mask)
    for number in range(600):
        logs.add("one", LogMessage("debug" if number % 2 else "error", "x", {"number": number}))
    logs.add("two", LogMessage("info", None, f"it is {SECRET}"))
    mask.add([SECRET])
    assert len(logs.of("one")) == 500
    assert {line.level for line in logs.of("one", "warning")} == {"error"}
    assert logs.of("one")[-1].text == '{"number":599}'
    assert [line.text for line in logs.of("two")] == ["it is ***"]
    for letter in "abcdefghijklmnopqrstuvwxyz":
        logs.add("large", LogMessage("info", None, letter * 200_000))
    assert [line.text[0] for line in logs.of("large")] == [*"lmnopqrstuvwxyz"]
    assert {line.text[1:].lstrip(line.text[0]) for line in logs.of("large")} == {" …"}
    with pytest.raises(BadRequest):
        logs.of("one", "loud")


async def test_an_agent_is_told_what_it_asked_for_until_it_lapses_or_leaves() -> None:
    now, mask = 0.0, Mask([SECRET])
    tells, line = Tells("laptop", Mask()), Line(DELIVERED)
    logs = ServerLogs(tells, mask, lambda: now)

    def told() -> list[tuple[str, str, str]]:
        sent = [(data["agent"], data["mcp_server"], data["data"]) for _, data in line.sent]
        line.sent.clear()
        return sent

    def say(level: str = "info") -> None:
        for server in ("one", "two"):
            logs.add(server, LogMessage(level, None, f"{level} {SECRET}"))  # type: ignore[arg-type]

    with tells.connected("desk", line):
        say()
        assert (told(), logs.level_for("one")) == ([], None)
        logs.watch(PLANNER, None, "warning")
        logs.watch(PLANNER, "two", "debug")
        assert (logs.level_for("one"), logs.level_for("two")) == ("warning", "debug")
        say()
        assert told() == [("planner", "two", "info ***")]
        say("error")
        assert told() == [("planner", "one", "error ***"), ("planner", "two", "error ***")]
        logs.set_owners_level("one", "info")
        assert logs.level_for("one") == "info"
        now = 16 * 60.0
        say("error")
        assert (told(), logs.level_for("one"), logs.level_for("two")) == ([], "info", None)
        logs.watch(PLANNER, None, "debug")
        logs.watch(OTHER, None, "debug")
        logs.drop(lambda caller: caller.office == "desk" and caller.agent != "planner")
        say()
        assert {agent for agent, *_ in told()} == {"planner"}
        logs.drop(lambda caller: (caller.office, caller.agent) == ("desk", "planner"))
        say()
        assert told() == []
        await asyncio.sleep(0)
