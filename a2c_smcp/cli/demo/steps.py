"""The steps of the demo, and how they are printed. A step raises `DemoFailed` unless what it prints has happened."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.terminal import put_table
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import CallCancelled, ComputerNotFound, NotAuthenticated
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.registry import StepOutcome, run_plan_async
from a2c_smcp.registry.planning.plan import ReplyStep, Step, ToolStep

__all__ = [
    "AGENT",
    "COMPUTER",
    "OFFICE",
    "STEPS",
    "DemoContext",
    "DemoFailed",
    "StepPrinter",
    "expect",
    "is_alive",
    "pids",
    "refuse_stranger",
    "running",
    "until",
]

OFFICE, AGENT, COMPUTER = "desk", "planner", "laptop"
PATIENCE = 15.0


@dataclass(frozen=True)
class DemoContext:
    """What the steps use. `desktops`: updates that the agent received; `asked`: questions that the owner received."""

    printer: StepPrinter
    computer: Computer
    agent: AsyncSMCPAgentClient
    desktops: asyncio.Queue[list[str]]
    asked: asyncio.Queue[str]

    async def text(self, tool: str, **arguments: object) -> str:
        return (await self.agent.emit_tool_call(COMPUTER, tool, arguments, timeout=60)).text


async def refuse_stranger(printer: StepPrinter, url: str) -> None:
    try:
        async with AsyncSMCPAgentClient("stranger", url=url, office=OFFICE, api_key="a wrong key"):
            raise DemoFailed("a stranger came in with a wrong key")
    except NotAuthenticated as error:
        await printer.step("stranger", f"connects with a wrong key: {error}", proves="a stranger is turned away")


async def use_tools(demo: DemoContext) -> None:
    printer, agent = demo.printer, demo.agent
    printer.section("Tools")
    names = set(agent.registry)
    expect({"add", "note", "multiply"} <= names, True)
    await printer.step(
        "agent",
        f"{AGENT!r} joins, and has in its registry what the computer offers: {', '.join(sorted(names))}",
        proves="tools of two MCP servers and a Python function in one list",
    )
    expect(await demo.text("multiply", a=6, b=7), "42")
    await printer.step("agent", "calls multiply(6, 7) on the MCP server 'abacus': 42", proves="a tool called")
    expect(await demo.text("add", a=2, b=3), "5")
    await printer.step("agent", "calls add(2, 3), a Python function of the computer: 5", proves="a function called")
    try:
        await agent.get_tools("basement")
    except ComputerNotFound as error:
        await printer.step("agent", f"asks for a computer that is not in its office: {error}")
    else:
        raise DemoFailed("a computer that is not in the office answered")


async def watch_desktop(demo: DemoContext) -> None:
    printer, agent = demo.printer, demo.agent
    printer.section("Desktop")
    (before,) = await agent.get_desktop(COMPUTER)
    await printer.step("agent", f"looks at the desktop: {_shown(before)}")
    expect(await demo.text("note", text="call home"), "2 notes")
    async with asyncio.timeout(PATIENCE):
        (after,) = await demo.desktops.get()
    expect("- call home" in after, True)
    await printer.step(
        "agent", f"puts a note there, and receives the change: {_shown(after)}", proves="a desktop that changes"
    )


async def ask_the_owner(demo: DemoContext) -> None:
    """The computer asks its owner; here the demo answers for the owner."""
    printer = demo.printer
    printer.section("Approval")
    wiping = asyncio.create_task(demo.text("wipe"))
    async with asyncio.timeout(PATIENCE):
        question = await demo.asked.get()
    await printer.step("owner", f"is asked: {question} [y/n]  y   (the demo answers by itself)")
    expect(await wiping, "0 notes")
    await printer.step("agent", "gets its answer: 0 notes", proves="a tool that asks its owner first")


async def survive_a_kill(demo: DemoContext) -> None:
    printer, computer = demo.printer, demo.computer
    printer.section("Failure")
    _, pid = pids(computer)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: computer.status()["notes"].state != "ready")
    await printer.step("computer", f"server 'notes' is killed (kill -9 {pid}); {computer.status()['notes'].reason}")
    expect(await demo.text("multiply", a=2, b=2), "4")
    await printer.step("agent", "calls multiply(2, 2) on the other server: 4", proves="one dead server hurts no other")
    await until(lambda: computer.status()["notes"].state == "ready")
    await until(lambda: "note" in demo.agent.registry)
    expect(await demo.text("note", text="back again"), "2 notes")
    await printer.step(
        "computer", "has started it again, and the agent has its tools back", proves="a dead server comes back"
    )


async def cancel_one(demo: DemoContext) -> None:
    printer, agent = demo.printer, demo.agent
    printer.section("Cancelling")
    before = len(demo.computer.history)
    counting = asyncio.create_task(agent.emit_tool_call(COMPUTER, "count_to", {"number": 60}, req_id="the slow one"))
    await until(lambda: len(demo.computer.history) > before)
    await printer.step("agent", "calls count_to(60), which takes a minute, and decides to cancel it")
    await agent.cancel("the slow one")
    try:
        await counting
    except CallCancelled as error:
        await printer.step("agent", f"cancels it: {error}", proves="a slow call cancelled")
    else:
        raise DemoFailed("a cancelled call came back as if nothing had happened")


async def carry_out_plan(demo: DemoContext) -> None:
    """A plan over a tool of the agent and a tool of the computer, through one registry (001 §6)."""
    printer, agent = demo.printer, demo.agent
    printer.section("A plan")

    @agent.registry.tool
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    plan: list[Step] = [
        ToolStep("shout", {"text": "done"}),
        ToolStep("add", {"a": 20, "b": 22}),
        ReplyStep("The answer is 42."),
    ]
    await printer.step("agent", "has a tool of its own, shout, beside those of the computer, and a plan for both:")
    done = await run_plan_async(plan, agent.registry)
    expect([outcome.result for outcome in done.outcomes[:2]], ["DONE", {"result": 42}])
    for outcome in done.outcomes[:-1]:
        await printer.step("agent", _described(outcome, agent))
    await printer.step("agent", f"replies: {done.replies[0]}", proves="a plan over local and remote tools")


STEPS = (use_tools, watch_desktop, ask_the_owner, survive_a_kill, cancel_one, carry_out_plan)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(computer: Computer, url: str, *, office: str, key: str, folder: Path) -> AsyncIterator[None]:
    """Run a computer in an office. It has joined, and its MCP servers are ready, when the block begins."""
    states: list[str] = []
    working = asyncio.create_task(
        computer.run(url, office=office, api_key=key, state_folder=folder, on_connection=states.append)
    )
    try:
        await until(lambda: working.done() or (bool(states) and _is_ready(computer)))
        if working.done():
            working.result()
        yield
    finally:
        await cancel_and_wait(working)


def _is_ready(computer: Computer) -> bool:
    return all(status.state == "ready" for status in computer.status().values())


def pids(computer: Computer) -> list[int]:
    """Process ids of the MCP servers, in the order of the servers' names."""
    known = [status.diagnostics.get("pid") for _, status in sorted(computer.status().items())]
    return [pid for pid in known if isinstance(pid, int)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _shown(desktop: str) -> str:
    uri, _, text = desktop.partition("\n\n")
    return f"{uri} with {text!r}"


def _described(outcome: StepOutcome, agent: AsyncSMCPAgentClient) -> str:
    assert isinstance(outcome.step, ToolStep)
    origin = getattr(agent.registry[outcome.step.name], "origin", "here")
    return f"  {outcome.step.name} ({origin}) → {outcome.result!r} in {outcome.duration * 1000:.1f} ms"


_COLOURS = {
    "server": "magenta",
    "stranger": "red",
    "computer": "green",
    "owner": "yellow",
    "agent": "cyan",
    "node": "magenta",
    "balancer": "yellow",
    "store": "blue",
}
_MARGIN = 25


class DemoFailed(Exception):
    """Something that the demo claims did not happen."""


class StepPrinter:
    """Prints a numbered line for each step: who did what, and how long it took. Then it pauses for a reader.

    A step may prove a claim; `print_summary` lists the claims.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._lines = 0
        self._proven: list[tuple[str, float]] = []
        self._since_proof = 0.0
        self.began = self._last = time.perf_counter()

    async def step(self, who: str, what: str, proves: str = "") -> None:
        now = time.perf_counter()
        took = (now - self._last) * 1000
        self._lines += 1
        margin = typer.style(f"{self._lines:3} {took:6.0f} ms", dim=True)
        typer.echo(f"{margin}  {typer.style(f'{who:<9}', fg=_COLOURS[who])} {_wrapped(what)}")
        self._since_proof += took
        if proves:
            self._proven.append((proves, self._since_proof))
            self._since_proof = 0.0
        await asyncio.sleep(self._pause * (1 + len(what) / 80))
        self._last = time.perf_counter()

    def section(self, title: str) -> None:
        typer.secho(f"\n{title}", bold=True)
        self._since_proof = 0.0

    def print_summary(self) -> None:
        typer.secho("\nWhat has been proven\n", bold=True)
        put_table(["", "in"], [(f"✓ {what}", f"{took:.0f} ms") for what, took in self._proven])


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise DemoFailed(f"{found!r} came back in place of {wanted!r}")


def _wrapped(text: str) -> str:
    width = max(get_terminal_size().columns - _MARGIN, 40)
    return f"\n{' ' * _MARGIN}".join(textwrap.wrap(text, width) or [""])
