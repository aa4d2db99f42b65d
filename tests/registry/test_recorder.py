"""Calls that are recorded and replayed."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import BadRequest, ToolForbidden
from a2c_smcp.registry import MCPRegistry, NotRecorded, Policy, RecordedError, Recorder, replay
from tests.registry.tools import Bare, EchoTool, Failing, tool

pytestmark = pytest.mark.covers("registry-replay")

CANARY = "canary-77f1c9"


class Own(Exception):
    pass


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def raising(error: BaseException) -> Bare:
    return Failing(99, error, name="fail")  # type: ignore[return-value]


def record(log: Path, *tools: Any) -> MCPRegistry:
    registry = MCPRegistry(hooks=[Recorder(log)])
    registry.update(add=tools)
    return registry


def replayed(log: Path, **options: Any) -> MCPRegistry:
    registry = MCPRegistry()
    registry.update(add=replay(log, **options))
    return registry


def test_a_call_is_a_line_in_a_file_that_only_its_owner_may_read(log: Path) -> None:
    record(log, EchoTool()).call("echo", {"text": "hi"})
    (line,) = lines(log)
    assert line.pop("duration") > 0
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "name": "echo",
        "arguments": {"text": "hi"},
        "outcome": "ok",
        "arguments_size": 13,
        "result_size": 15,
        "result": {"output": "hi"},
    }
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_values_can_be_left_out_of_the_log(log: Path) -> None:
    registry = MCPRegistry(hooks=[Recorder(log, values=False)])
    registry.register(EchoTool())
    registry.register(raising(Own(CANARY)))
    registry.call("echo", {"text": CANARY})
    with pytest.raises(Own):
        registry.call("fail", {"x": CANARY})
    assert CANARY not in log.read_text("utf-8")
    assert [line["outcome"] for line in lines(log)] == ["ok", "error"]
    assert lines(log)[1]["error"]["type"] == "Own"
    assert replay(log) == []


async def test_a_log_is_replayed(log: Path) -> None:
    registry = record(log, EchoTool())
    registry.call("echo", {"text": "hi"})
    await registry.acall("echo", {"text": "there"})
    again = replayed(log, like=registry.describe())
    assert again.describe() == registry.describe()
    assert again.call("echo", {"text": "there"}) == {"output": "there"}
    assert again.call("echo", {"text": "hi"}) == {"output": "hi"}


def test_equal_arguments_get_their_answers_in_order_and_the_last_one_again(log: Path) -> None:
    numbers = iter(range(3))
    registry = record(log, Bare("next", lambda _: next(numbers)))
    for _ in range(3):
        registry.call("next", {"a": 1, "b": 2})
    again = replayed(log)
    assert [again.call("next", {"b": 2, "a": 1}) for _ in range(5)] == [0, 1, 2, 2, 2]


def test_arguments_that_were_not_recorded_raise_not_recorded(log: Path) -> None:
    record(log, tool("same")).call("same", {"a": 1})
    with pytest.raises(NotRecorded, match="'same'") as caught:
        replayed(log).call("same", {"a": 2})
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (KeyError("own"), KeyError, "'own'"),
        (FileNotFoundError("no such file"), FileNotFoundError, "no such file"),
        (BadRequest("own", field="x"), BadRequest, "400 Bad request: own"),
        (Own("own"), RecordedError, "Own: own"),
        (ExceptionGroup("several", [ValueError()]), RecordedError, "ExceptionGroup: several"),
        (SystemExit(3), RecordedError, "SystemExit: 3"),
    ],
)
def test_recorded_errors_are_raised_again(log: Path, error: BaseException, kind: type[Exception], words: str) -> None:
    with pytest.raises(type(error)):
        record(log, raising(error)).call("fail", {})
    with pytest.raises(kind) as caught:
        replayed(log).call("fail", {})
    assert str(caught.value).startswith(words)
    if isinstance(caught.value, BadRequest):
        assert caught.value.details == {"field": "x"}


def test_arguments_are_recorded_before_the_tool_changes_them(log: Path) -> None:
    record(log, Bare("clear", lambda arguments: arguments.clear())).call("clear", {"a": 1})
    assert lines(log)[0]["arguments"] == {"a": 1}


def test_any_arguments_and_results_can_be_recorded(log: Path) -> None:
    circle: list[Any] = []
    circle.append(circle)
    registry = record(log, Bare("odd", lambda _: circle), tool("same"))
    registry.call("odd", {})
    registry.call("same", {"raw": b"\xff", "set": {1}, "nan": float("nan"), "thing": Own})
    odd, same = lines(log)
    assert odd["outcome"] == same["outcome"] == "ok"
    assert same["arguments"]["set"] == [1]


async def test_a_cancelled_call_has_no_answer_to_replay(log: Path) -> None:
    started = asyncio.Event()

    async def wait(arguments: dict[str, Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(record(log, Bare("wait", wait)).acall("wait", {}))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [line["outcome"] for line in lines(log)] == ["cancelled"]
    assert replay(log) == []


def test_a_log_that_was_cut_off_is_replayed_as_far_as_it_goes(log: Path) -> None:
    record(log, tool("same")).call("same", {"a": 1})
    with log.open("a") as file:
        file.write('{"name": "same", "argum')
    assert replayed(log).call("same", {"a": 1}) == {"a": 1}


def test_lines_of_several_threads_do_not_mix(log: Path) -> None:
    registry = record(log, tool("same"))
    threads = [threading.Thread(target=lambda: [registry.call("same", {"n": n}) for n in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(lines(log)) == 200


def test_a_log_that_cannot_be_written_raises_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recorder(tmp_path / "nowhere" / "calls.jsonl")


def test_a_cost_that_is_not_json_is_recorded(log: Path) -> None:
    registry = record(log, Bare("dear", lambda _: {"output": 1, "meta": {"cost": Decimal("0.25")}}))
    registry.call("dear", {})
    assert [line["cost"] for line in lines(log)] == ["0.25"]


def test_a_name_without_a_tool_is_not_replayed(log: Path) -> None:
    registry = MCPRegistry(hooks=[Recorder(log)], policy=Policy(deny=["rm"]))
    registry.register(tool("same"))
    registry.register(tool("rm"))
    registry.call("same", {})
    for name in ("nope", "rm"):
        with pytest.raises((KeyError, ToolForbidden)):
            registry.call(name, {})
    assert [*replayed(log)] == ["same"]
