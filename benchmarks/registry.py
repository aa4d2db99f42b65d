"""What a tool call costs in the process itself: MCPRegistry beside pydantic-ai, LangChain and FastMCP, one function.

Runs where those peers are installed (`make bench-peers`). The registry checks arguments and tells hooks of every call;
the others are as they come, and entered by their cheapest public door as well as by the usual one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastmcp import Client, FastMCP
from langchain_core.tools import StructuredTool
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage

from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.calls.hooks import ToolCall
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report

BATCH = 0.02
"""How long a sample takes, in seconds: long enough for the clock, short enough for many turns."""

WARM_UP = 20
QUICK = 4
PEERS = ("pydantic-ai-slim", "langchain-core", "fastmcp")
OURS = "MCPRegistry, checked, with hooks"
ARGUMENTS = {"query": "tea", "limit": 5, "tags": ["green", "black"]}
ANSWER = "5 notes about tea"

Calls = Callable[[int], Awaitable[Any]]
"""Makes so many calls, one after another, and returns the last answer."""


def search(query: str, limit: int = 10, tags: list[str] | None = None) -> str:
    """Search the notes."""
    return f"{limit} notes about {query}"


async def search_async(query: str, limit: int = 10, tags: list[str] | None = None) -> str:
    """Search the notes."""
    return f"{limit} notes about {query}"


def sync_calls(call: Callable[[], Any]) -> Calls:
    async def calls(count: int) -> Any:
        for _ in range(count):
            answer = call()
        return answer

    return calls


def async_calls(call: Callable[[], Awaitable[Any]]) -> Calls:
    async def calls(count: int) -> Any:
        for _ in range(count):
            answer = await call()
        return answer

    return calls


class Telemetry:
    """What such a hook is for: calls and their time, by tool and outcome."""

    def __init__(self) -> None:
        self.running = 0
        self.calls: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)

    def before(self, call: ToolCall) -> None:
        self.running += 1

    def after(self, call: ToolCall) -> None:
        self.running -= 1
        self.calls[call.name, call.outcome] += 1
        self.seconds[call.name, call.outcome] += call.duration

    error = after


class Sizes(Telemetry):
    """Bytes too: they are measured for whoever asks."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def after(self, call: ToolCall) -> None:
        super().after(call)
        self.bytes[call.name] += (call.arguments_size or 0) + (call.result_size or 0)


def ours(function: Callable[..., Any], **settings: Any) -> Calls:
    tools = MCPRegistry(**settings)
    tools.tool(name="search")(function)
    if asyncio.iscoroutinefunction(function):
        return async_calls(lambda: tools.acall("search", ARGUMENTS))
    return sync_calls(lambda: tools.call("search", ARGUMENTS))


def bare(function: Callable[..., Any]) -> Calls:
    kind = async_calls if asyncio.iscoroutinefunction(function) else sync_calls
    return kind(lambda: function(**ARGUMENTS))


def langchain(function: Callable[..., Any]) -> Calls:
    if asyncio.iscoroutinefunction(function):
        tool = StructuredTool.from_function(coroutine=function, name="search")
        return async_calls(lambda: tool.ainvoke(ARGUMENTS))
    tool = StructuredTool.from_function(function, name="search")
    return sync_calls(lambda: tool.invoke(ARGUMENTS))


async def pydantic_ai(function: Callable[..., Any]) -> dict[str, Calls]:
    toolset = FunctionToolset[None]()
    toolset.add_function(function, name="search")
    context = RunContext[None](deps=None, model=TestModel(), usage=RunUsage())
    tool = (await toolset.get_tools(context))["search"]
    manager = await ToolManager(toolset).for_run_step(context)

    async def validated() -> Any:
        return await toolset.call_tool("search", tool.args_validator.validate_python(ARGUMENTS), context, tool)

    return {
        "pydantic-ai, validator and toolset": async_calls(validated),
        "pydantic-ai, ToolManager": async_calls(lambda: manager.handle_call(ToolCallPart("search", ARGUMENTS))),
    }


@asynccontextmanager
async def fastmcp(function: Callable[..., Any]) -> AsyncIterator[dict[str, Calls]]:
    server = FastMCP("notes")
    server.tool(function, name="search")
    async with Client(server) as client:
        yield {
            "FastMCP, server.call_tool": async_calls(lambda: server.call_tool("search", ARGUMENTS)),
            "FastMCP, Client in memory": async_calls(lambda: client.call_tool("search", ARGUMENTS)),
        }


@asynccontextmanager
async def contestants(function: Callable[..., Any]) -> AsyncIterator[dict[str, Calls]]:
    async with fastmcp(function) as served:
        yield {
            "the function itself": bare(function),
            "MCPRegistry as it comes": ours(function),
            OURS: ours(function, validate=True, hooks=[Telemetry()]),
            f"{OURS} for sizes too": ours(function, validate=True, hooks=[Sizes()]),
            **await pydantic_ai(function),
            "LangChain, StructuredTool": langchain(function),
            **served,
        }


async def batch_of(calls: Calls) -> tuple[Calls, int]:
    """As many calls as fill a sample, once they are warm and known to answer what they should."""
    answer, count, seconds = await calls(WARM_UP), WARM_UP, 0.0
    if ANSWER not in str(answer):
        raise RuntimeError(f"{answer!r} came back in place of {ANSWER!r}")
    while seconds < BATCH / 2:
        start = time.perf_counter()
        await calls(count)
        seconds = time.perf_counter() - start
        count *= 2
    return calls, max(int(count / 2 * BATCH / seconds), 1)


async def cpu_per_call(batch: tuple[Calls, int]) -> float:
    """Seconds of this process's CPU, its threads included: on a busy machine the clock would count the neighbours."""
    calls, count = batch
    start = time.process_time()
    await calls(count)
    return (time.process_time() - start) / count


async def compare(title: str, function: Callable[..., Any], rounds: int) -> list[Row]:
    async with contestants(function) as calls:
        batches = {name: await batch_of(each) for name, each in calls.items()}
        samples = await in_turn(batches, rounds, cpu_per_call)
    costs = {name: median(found) for name, found in samples.items()}
    return [
        {
            "function": title,
            "called through": name,
            "CPU µs": per(cost, 1, 1e-6),
            "times ours": ratio(cost, costs[OURS]),
        }
        for name, cost in costs.items()
    ]


async def measure(rounds: int) -> list[Row]:
    functions = {"def": search, "async def": search_async}
    return [row for title, function in functions.items() for row in await compare(title, function, rounds)]


def main() -> None:
    chosen = options("A tool call in one process: our registry and others.", rounds=30).parse_args()
    rows = asyncio.run(measure(QUICK if chosen.quick else chosen.rounds))
    report(rows, chosen)
    save("registry", chosen.title, rows, versions={name: version(name) for name in PEERS})


if __name__ == "__main__":
    main()
