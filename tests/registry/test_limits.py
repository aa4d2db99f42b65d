"""Timeouts, retries, and how many calls of a tool run and wait at the same time."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from a2c_smcp.errors import BadRequest, CallTimeout, ConfigError, RateLimited, Unavailable
from a2c_smcp.registry import Limit, LoopIsRunning, MCPRegistry, QueueFull, Retry, ToolTimeout
from tests.registry.servers import wait_for
from tests.registry.tools import Bare, Failing, registry_of, tool
from tests.stage.raising import raises

AT_ONCE = Retry(attempts=3, first_pause=0)
BOUND = 10


class Blocking:
    """A sync tool that runs until it is released."""

    name = "block"

    def __init__(self) -> None:
        self.started, self.release = threading.Semaphore(0), threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def call(self, arguments: dict[str, Any]) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.started.release()
        assert self.release.wait(BOUND)
        with self._lock:
            self.running -= 1
        return "done"


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    blocking = Blocking()
    yield blocking
    blocking.release.set()


async def forever(arguments: dict[str, Any]) -> None:
    await asyncio.Event().wait()


# Time


@pytest.mark.covers("registry-timeout")
async def test_a_slow_tool_is_a_timeout_for_sync_and_async_callers(blocking: Blocking) -> None:
    registry = registry_of(blocking, timeout=0.02)
    for attempt in (asyncio.to_thread(registry.call, "block", {}), registry.acall("block", {})):
        with pytest.raises(ToolTimeout, match=r"'block' within 0\.02 s") as caught:
            await attempt
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, CallTimeout)
        assert caught.value.code == 408


@pytest.mark.covers("registry-timeout")
def test_a_slow_async_tool_is_cancelled() -> None:
    cancelled: list[bool] = []

    async def wait(arguments: dict[str, Any]) -> None:
        try:
            await forever(arguments)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    registry = registry_of(Bare("wait", wait), timeout=0.02)
    with pytest.raises(ToolTimeout):
        registry.call("wait", {})
    with pytest.raises(ToolTimeout):
        asyncio.run(registry.acall("wait", {}))
    assert cancelled == [True, True]


@pytest.mark.covers("registry-timeout")
def test_a_tool_may_have_its_own_timeout_or_none(blocking: Blocking) -> None:
    registry = MCPRegistry(timeout=BOUND)
    registry.register(blocking, timeout=0.01)
    with pytest.raises(ToolTimeout, match=r"0\.01"):
        registry.call("block", {})
    registry.register(Bare("where", lambda _: threading.current_thread()), timeout=math.inf)
    assert registry.call("where", {}) is threading.current_thread()


@pytest.mark.covers("registry-timeout")
def test_the_decorator_takes_timeout_and_limit() -> None:
    registry = MCPRegistry()

    @registry.tool(timeout=0.01, limit=Limit(1), tags=["slow"])
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ToolTimeout):
        registry.call("wait", {})
    assert registry["wait"].meta == {"tags": ["slow"]}


# New attempts


@pytest.mark.covers("registry-retry")
@pytest.mark.parametrize(
    "mark", [{"idempotent": True}, {"read_only": True}, {"meta": {"annotations": {"idempotentHint": True}}}]
)
async def test_a_repeatable_tool_is_called_again(mark: dict[str, Any]) -> None:
    registry = registry_of(Failing(2, Unavailable(), **mark), retry=AT_ONCE)
    assert registry.call("flaky", {}) == 3
    registry.register(Failing(2, OSError(), **mark))
    assert await registry.acall("flaky", {}) == 3


@pytest.mark.covers("registry-retry")
@pytest.mark.parametrize("mark", [{}, {"idempotent": False}, {"meta": {"annotations": {"readOnlyHint": "yes"}}}])
async def test_a_tool_without_a_hint_is_called_once(mark: dict[str, Any]) -> None:
    registry, flaky = MCPRegistry(retry=AT_ONCE), Failing(99, OSError(), **mark)
    registry.register(flaky)
    with pytest.raises(OSError):  # noqa: PT011  # whatever it says
        registry.call("flaky", {})
    assert flaky.calls == 1


@pytest.mark.covers("registry-retry")
@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (BadRequest(), 1),
        (LoopIsRunning(), 1),
        (RateLimited(), 3),
        (CallTimeout(), 3),
        (Unavailable(), 3),
        (KeyboardInterrupt(), 1),
    ],
)
def test_an_error_that_says_the_call_is_wrong_is_final(error: BaseException, calls: int) -> None:
    registry, flaky = MCPRegistry(retry=AT_ONCE), Failing(99, error, idempotent=True)
    registry.register(flaky)
    with pytest.raises(type(error)):
        registry.call("flaky", {})
    assert flaky.calls == calls


@pytest.mark.covers("registry-retry")
def test_errors_to_retry_on_can_be_named() -> None:
    registry = registry_of(
        Failing(1, KeyError(), idempotent=True), retry=Retry(first_pause=0, on=(ConnectionError, LookupError))
    )
    assert registry.call("flaky", {}) == 2
    registry.register(Failing(1, ValueError(), idempotent=True))
    with pytest.raises(ValueError):  # noqa: PT011  # whatever it says
        registry.call("flaky", {})


@pytest.mark.covers("registry-retry")
def test_each_attempt_has_its_own_timeout() -> None:
    calls: list[int] = []

    async def slow_once(arguments: dict[str, Any]) -> str:
        calls.append(1)
        if len(calls) == 1:
            await forever(arguments)
        return "done"

    registry = registry_of(Bare("slow", slow_once, read_only=True), retry=AT_ONCE, timeout=0.3)
    assert registry.call("slow", {}) == "done"


@pytest.mark.covers("registry-retry")
def test_pauses_are_drawn_below_a_bound_that_doubles() -> None:
    retry = Retry(attempts=6, first_pause=1, longest_pause=4)
    drawn = [[*retry.pauses()] for _ in range(200)]
    bounds = [1, 2, 4, 4, 4]
    assert all(0 <= pause <= bound for pauses in drawn for pause, bound in zip(pauses, bounds, strict=True))
    assert len({pauses[0] for pauses in drawn}) > 100
    assert max(pauses[2] for pauses in drawn) > 2


# How many at once


@pytest.mark.covers("registry-async")
async def test_no_more_calls_than_allowed_run_at_once(blocking: Blocking) -> None:
    """From threads and from a loop, through one gate."""
    registry = MCPRegistry()
    registry.register(blocking, limit=Limit(2, waiting=20))
    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(registry.call, "block", {}) for _ in range(8)]
        tasks = [asyncio.ensure_future(registry.acall("block", {})) for _ in range(8)]
        async with asyncio.timeout(BOUND):
            for _ in range(2):
                await asyncio.to_thread(blocking.started.acquire)
            blocking.release.set()
            assert await asyncio.gather(*tasks) == ["done"] * 8
    assert [thread.result(BOUND) for thread in threads] == ["done"] * 8
    assert blocking.most == 2


@pytest.mark.covers("registry-async")
async def test_a_full_line_refuses_the_next_call(blocking: Blocking) -> None:
    registry = registry_of(blocking, limit=Limit(1, waiting=1))
    running = [asyncio.ensure_future(registry.acall("block", {})) for _ in range(2)]
    async with asyncio.timeout(BOUND):
        await asyncio.to_thread(blocking.started.acquire)
        for attempt in (registry.acall("block", {}), asyncio.to_thread(registry.call, "block", {})):
            with raises(QueueFull, match="'block'", code=429):
                await attempt
        blocking.release.set()
        assert await asyncio.gather(*running) == ["done", "done"]
        assert await registry.acall("block", {}) == "done"


@pytest.mark.covers("registry-async")
async def test_each_tool_has_its_own_line(blocking: Blocking) -> None:
    registry = registry_of(blocking, tool("other"), limit=Limit(1, waiting=0))
    running = asyncio.ensure_future(registry.acall("block", {}))
    await asyncio.to_thread(blocking.started.acquire)
    assert await registry.acall("other", {}) == {}
    blocking.release.set()
    await running


@pytest.mark.covers("registry-async")
async def test_a_cancelled_call_gives_up_its_slot_or_place_in_line() -> None:
    registry, started = MCPRegistry(limit=Limit(1, waiting=2)), asyncio.Event()

    async def wait(arguments: dict[str, Any]) -> str:
        started.set()
        if arguments:
            await forever(arguments)
        return "done"

    registry.register(Bare("wait", wait))
    first = asyncio.ensure_future(registry.acall("wait", {"for": "ever"}))
    await started.wait()
    second = asyncio.ensure_future(registry.acall("wait", {}))
    third = asyncio.ensure_future(registry.acall("wait", {}))
    await asyncio.sleep(0)
    for call in (second, first):
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    async with asyncio.timeout(BOUND):
        assert await third == "done"
        assert await registry.acall("wait", {}) == "done"


@pytest.mark.covers("registry-async")
async def test_a_slot_given_to_a_cancelled_call_is_passed_on() -> None:
    registry, begun, finish = MCPRegistry(limit=Limit(1)), asyncio.Event(), asyncio.Event()

    async def wait(arguments: dict[str, Any]) -> str:
        begun.set()
        await finish.wait()
        return "done"

    registry.register(Bare("wait", wait))
    first = asyncio.ensure_future(registry.acall("wait", {}))
    await begun.wait()
    second = asyncio.ensure_future(registry.acall("wait", {}))
    await asyncio.sleep(0)
    finish.set()
    await first
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    async with asyncio.timeout(BOUND):
        assert await registry.acall("wait", {}) == "done"


@pytest.mark.covers("registry-async", "registry-timeout")
async def test_the_timeout_covers_the_wait_in_line(blocking: Blocking) -> None:
    registry = MCPRegistry()
    registry.register(blocking, limit=Limit(1), timeout=0.05)
    calls: list[Awaitable[Any]] = [registry.acall("block", {}), asyncio.to_thread(registry.call, "block", {})]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ToolTimeout, ToolTimeout]
    assert blocking.most == 1


@pytest.mark.covers("registry-async", "registry-timeout")
def test_a_late_sync_tool_keeps_its_slot_until_it_ends(blocking: Blocking) -> None:
    registry = MCPRegistry()
    registry.register(blocking, limit=Limit(1, waiting=0), timeout=0.02)
    with pytest.raises(ToolTimeout):
        registry.call("block", {})
    with pytest.raises(QueueFull):
        registry.call("block", {})
    blocking.release.set()
    wait_for(lambda: blocking.running == 0)

    def answers() -> bool:
        try:
            return bool(registry.call("block", {}) == "done")
        except (QueueFull, ToolTimeout):
            return False

    wait_for(answers)


@pytest.mark.covers("registry-async")
def test_a_failing_tool_gives_its_slot_back() -> None:
    registry = registry_of(Failing(2, KeyError("own")), limit=Limit(1, waiting=0))
    for _ in range(2):
        with pytest.raises(KeyError, match="own"):
            registry.call("flaky", {})
    assert registry.call("flaky", {}) == 3


@pytest.mark.covers("registry-async")
async def test_no_slot_is_lost_or_given_twice_when_callers_give_up() -> None:
    running, most, chance = 0, 0, random.Random(7)

    async def work(arguments: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            for _ in range(arguments["steps"]):
                await asyncio.sleep(0)
        finally:
            running -= 1

    registry = MCPRegistry()
    registry.register(Bare("work", work), limit=Limit(3, waiting=1000))
    calls = [asyncio.ensure_future(registry.acall("work", {"steps": chance.randrange(4)})) for _ in range(500)]
    async with asyncio.timeout(BOUND):
        for call in chance.sample(calls, 250):
            await asyncio.sleep(0)
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert most == 3
        most = 0
        await asyncio.gather(*(registry.acall("work", {"steps": 3}) for _ in range(9)))
    assert (running, most) == (0, 3)


@pytest.mark.covers("registry-timeout", "registry-retry", "registry-async")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (lambda timeout=timeout: MCPRegistry(timeout=timeout), "no time for a call")
            for timeout in (-1, 0, math.nan)
        ),
        *(
            (lambda timeout=timeout: MCPRegistry().register(tool("a"), timeout=timeout), "timeout")
            for timeout in (0, -1)
        ),
        (lambda: MCPRegistry().register(tool("a"), timeout=math.nan), "timeout"),
        (lambda: Retry(attempts=0), "Retry"),
        (lambda: Retry(first_pause=-1), "Retry"),
        (lambda: Retry(longest_pause=-1), "Retry"),
        (lambda: Limit(0), "Limit"),
        (lambda: Limit(1, waiting=-1), "Limit"),
    ],
)
def test_what_is_impossible_is_refused_at_once(make: Any, words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        make()
