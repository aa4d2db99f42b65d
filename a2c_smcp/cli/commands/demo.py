"""`a2c-smcp demo`: a Server, a Computer and an agent on this machine, printing each step.

A step raises `DemoFailed` unless what it prints has happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.suggestions import in_shell, invocation
from a2c_smcp.cli.terminal import put_table
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import ApprovalRequest
from a2c_smcp.errors import CallCancelled, ComputerNotFound, NotAuthenticated, SMCPError, kind_of
from a2c_smcp.loops import cancel_and_wait, run_program
from a2c_smcp.mcp_host.processes.job import is_running
from a2c_smcp.registry import run_plan_async
from a2c_smcp.registry.planning.plan import ReplyStep, Step, ToolStep
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.run import address_of, listen, serving

_MCP_SERVERS = "a2c_smcp.cli.commands.demo_servers"
"""Only run, in processes of their own: importing it would load the MCP server library here."""


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause for a reader.")] = False,
) -> None:
    """See it work: a Server, a Computer and an agent on this machine.

    Everything is real: sockets, an API key, an office, two MCP servers in processes of their own, one of which is
    killed. The command succeeds only if everything that it prints has happened.

    Examples:

    \b
    a2c-smcp demo
    a2c-smcp demo --fast
    """
    logs.set_up("error")
    try:
        run_program(_run_demo(StepPrinter(pause=0 if fast else 0.25)))
    except (DemoFailed, SMCPError, OSError, TimeoutError) as error:
        what = f"The demo failed: {str(error) or kind_of(type(error))}"
        raise Failed(what, "If it fails again, run it as `a2c-smcp --debug demo` and report what it prints.") from error


async def _run_demo(printer: StepPrinter) -> None:
    typer.secho("A2C-SMCP: an agent uses the tools of a computer it cannot reach, through a Server", bold=True)
    printer.section("Starting")
    key, listener, events = new_key(), listen("127.0.0.1", 0), _DemoEvents()
    url = f"http://{address_of(listener)}"
    async with serving(create_app(Settings(auth=DefaultAuthenticationProvider(key))), listener):
        await printer.step("server", f"listens on {url} and wants an API key")
        await refuse_stranger(printer, url)
        computer = _laptop(events)
        with tempfile.TemporaryDirectory() as folder:
            async with running(computer, url, office=OFFICE, key=key, folder=Path(folder)):
                await printer.step(
                    "computer",
                    f"{COMPUTER!r} starts the MCP servers 'notes' and 'abacus', dials out and joins office {OFFICE!r}",
                    proves="two MCP servers started, no port opened",
                )
                async with AsyncSMCPAgentClient(
                    AGENT, url=url, office=OFFICE, api_key=key, event_handler=events
                ) as agent:
                    demo = DemoContext(printer, computer, agent, events.desktops, events.asked)
                    for step in STEPS:
                        await step(demo)
                processes = pids(computer)
        printer.section("Stopping")
        await until(lambda: not any(map(is_alive, processes)))
        await printer.step("computer", "leaves, and its MCP servers end with it", proves="no process left behind")
    await printer.step("server", "stops: no members, no calls in flight")
    printer.print_summary()
    typer.secho(f"\nall of this really happened, in {time.perf_counter() - printer.began:.1f} s", bold=True)
    program = in_shell(invocation())
    typer.echo(f"next: {program} up --help, {program} computer --help, {program} agent --help")


class _DemoEvents(AgentEvents):
    """Queues the desktop updates of the agent and the questions to the owner, for the steps that wait for them."""

    def __init__(self) -> None:
        self.desktops: asyncio.Queue[list[str]] = asyncio.Queue()
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    def on_desktop_updated(self, computer: str, desktops: list[str], office: str) -> None:
        self.desktops.put_nowait(desktops)

    async def approve(self, request: ApprovalRequest) -> bool:
        self.asked.put_nowait(f"may agent {request.caller.agent!r} run {request.name!r} of server {request.server!r}?")
        return True


def _laptop(owner: _DemoEvents) -> Computer:
    """A computer with two MCP servers and a Python function. One of its tools needs approval."""
    computer = Computer(COMPUTER, approve=owner.approve)
    for name in ("notes", "abacus"):
        computer.add_server(
            {
                "name": name,
                "type": "stdio",
                "server_parameters": {"command": sys.executable, "args": ["-m", _MCP_SERVERS, name]},
                "default_tool_meta": {"auto_apply": True},
                "tool_meta": {"wipe": {"auto_apply": False}},
            }
        )

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return computer


# The steps, and how they are printed.


OFFICE, AGENT, COMPUTER = "desk", "planner", "laptop"
PATIENCE = 15.0
_STARTING = 60.0
"""Seconds for the first start of the MCP servers: what they import may have to be compiled, or scanned for viruses."""
_UNDER_WAY = ("starting", "stopped")


@dataclass(frozen=True)
class DemoContext:
    """The parts that the steps use. `desktops`: updates for the agent; `asked`: questions to the owner."""

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
    os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # which kills on Windows
    await until(lambda: computer.status()["notes"].state != "ready")
    await printer.step("computer", f"server 'notes' is killed (process {pid}); {computer.status()['notes'].reason}")
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
        assert isinstance(outcome.step, ToolStep)
        origin = getattr(agent.registry[outcome.step.name], "origin", "here")
        line = f"  {outcome.step.name} ({origin}) → {outcome.result!r} in {outcome.duration * 1000:.1f} ms"
        await printer.step("agent", line)
    await printer.step("agent", f"replies: {done.replies[0]}", proves="a plan over local and remote tools")


STEPS = (use_tools, watch_desktop, ask_the_owner, survive_a_kill, cancel_one, carry_out_plan)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
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
        servers = computer.status
        await until(
            lambda: (
                working.done() or (bool(states) and all(each.state not in _UNDER_WAY for each in servers().values()))
            ),
            _STARTING,
        )
        if working.done():
            working.result()
        if any(server.state != "ready" for server in servers().values()):
            raise DemoFailed(f"an MCP server did not start; {_states(computer)}")
        yield
    except TimeoutError as late:
        raise DemoFailed(f"a step took longer than {PATIENCE:g} s; {_states(computer)}") from late
    finally:
        await cancel_and_wait(working)


def _states(computer: Computer) -> str:
    known = [f"{name} is {each.state} ({each.reason or 'no reason'})" for name, each in computer.status().items()]
    return "; ".join(known)


def pids(computer: Computer) -> list[int]:
    """Process ids of the MCP servers, in the order of the servers' names."""
    known = [status.diagnostics.get("pid") for _, status in sorted(computer.status().items())]
    return [pid for pid in known if isinstance(pid, int)]


def is_alive(pid: int) -> bool:
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return is_running(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _shown(desktop: str) -> str:
    uri, _, text = desktop.partition("\n\n")
    return f"{uri} with {text!r}"


_COLOURS = {
    "server": "magenta",
    "stranger": "red",
    "computer": "green",
    "owner": "yellow",
    "agent": "cyan",
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


def expect(answer: object, wanted: object) -> None:
    if answer != wanted:
        raise DemoFailed(f"{answer!r} came back in place of {wanted!r}")


def _wrapped(text: str) -> str:
    width = max(get_terminal_size().columns - _MARGIN, 40)
    return f"\n{' ' * _MARGIN}".join(textwrap.wrap(text, width) or [""])
