"""`a2c-smcp demo`: a Server, a Computer and an agent on this machine, told as it happens."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.cli import demo_server, logs
from a2c_smcp.cli.loop import run
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import CallCancelled, ComputerNotFound, NotAuthenticated, SMCPError
from a2c_smcp.registry import StepOutcome, run_plan_async
from a2c_smcp.registry.steps import ReplyStep, Step, ToolStep
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.auth import new_key
from a2c_smcp.server.run import address_of, listen, serving

__all__ = ["demo"]

_OFFICE, _AGENT, _COMPUTER = "desk", "planner", "laptop"
_COLOURS = {"server": "magenta", "stranger": "red", "computer": "green", "agent": "cyan"}
_PATIENCE = 15.0


class DemoFailed(Exception):
    """Something that the demo claims did not happen."""


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause for a reader.")] = False,
) -> None:
    """See it work: a Server, a Computer and an agent on this machine.

    Everything is real: sockets, an API key, an office, an MCP server in a process of its own, a plan carried out. The
    command succeeds only if all it tells has happened.

    Examples:

    \b
    a2c-smcp demo
    a2c-smcp demo --fast
    """
    logs.set_up(logs.Level.error)
    try:
        run(_tell(_Story(pause=0 if fast else 0.15)))
    except (DemoFailed, SMCPError, OSError, TimeoutError) as error:
        typer.secho(f"\nthe demo failed: {error or type(error).__name__}", fg="red", err=True)
        raise typer.Exit(1) from None


class _Story:
    """Numbered lines: who does what, and how long it took."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._line = 0
        self.began = self._last = time.perf_counter()

    async def tell(self, who: str, what: str) -> None:
        now = time.perf_counter()
        self._line += 1
        margin = typer.style(f"{self._line:3} {(now - self._last) * 1000:6.0f} ms", dim=True)
        typer.echo(f"{margin}  {typer.style(f'{who:<9}', fg=_COLOURS[who])} {what}")
        await asyncio.sleep(self._pause)
        self._last = time.perf_counter()


class _Notices(AgentEvents):
    """What the agent is told of the desktop, kept until the story comes to it."""

    def __init__(self) -> None:
        self.desktops: asyncio.Queue[list[str]] = asyncio.Queue()

    def on_desktop_updated(self, computer: str, desktops: list[str], office: str) -> None:
        self.desktops.put_nowait(desktops)


def _laptop() -> Computer:
    """A computer with an MCP server and a Python function."""
    computer = Computer(_COMPUTER)
    computer.add_server(
        {
            "name": "notes",
            "type": "stdio",
            "default_tool_meta": {"auto_apply": True},
            "server_parameters": {"command": sys.executable, "args": ["-m", demo_server.__name__]},
        }
    )

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return computer


@asynccontextmanager
async def _joined(computer: Computer, url: str, key: str) -> AsyncIterator[None]:
    """The computer in the office, with its servers ready."""
    joined = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "api_key": key,
            "state_folder": Path(folder),
            "on_connection": lambda what: joined.set(),
        }
        serving_ = asyncio.create_task(computer.run(url, office=_OFFICE, **options))
        try:
            async with asyncio.timeout(_PATIENCE):
                await joined.wait()
                await _until_ready(computer)
            yield
        finally:
            serving_.cancel()
            await asyncio.gather(serving_, return_exceptions=True)


async def _until_ready(computer: Computer) -> None:
    await _until(lambda: computer.status()["notes"].state == "ready")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.02)


async def _tell(story: _Story) -> None:
    typer.secho("A2C-SMCP: an agent uses the tools of a computer it cannot reach, through a Server\n", bold=True)
    key, listener = new_key(), listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    computer, notices = _laptop(), _Notices()
    async with serving(create_app(Settings(auth=DefaultAuthenticationProvider(key))), listener):
        await story.tell("server", f"listens on {url} and wants an API key")
        await _refuse_stranger(story, url)
        async with _joined(computer, url, key):
            await story.tell("computer", f"{_COMPUTER!r} starts its MCP server, dials out and joins office {_OFFICE!r}")
            agent = AsyncSMCPAgentClient(_AGENT, url=url, office=_OFFICE, api_key=key, event_handler=notices)
            async with agent:
                await _use_tools(story, agent)
                await _watch_desktop(story, agent, notices)
                await _survive_crash(story, computer, agent)
                await _cancel_one(story, computer, agent)
                await _carry_out_plan(story, agent)
        await story.tell("computer", "leaves, and its MCP server ends with it")
    await story.tell("server", "stops: nobody is left inside, nothing is in flight")
    typer.secho(f"\nall of this really happened, in {time.perf_counter() - story.began:.1f} s", bold=True)
    typer.echo("next: a2c-smcp server --help, a2c-smcp computer --help, a2c-smcp agent --help")


async def _refuse_stranger(story: _Story, url: str) -> None:
    try:
        async with AsyncSMCPAgentClient("stranger", url=url, office=_OFFICE, api_key="a wrong key"):
            raise DemoFailed("a stranger came in with a wrong key")
    except NotAuthenticated as error:
        await story.tell("stranger", f"knocks with a wrong key and is turned away: {error}")


async def _use_tools(story: _Story, agent: AsyncSMCPAgentClient) -> None:
    names = list(agent.registry)
    if not {"add", "note"} <= set(names):
        raise DemoFailed(f"tools are missing: {names}")
    await story.tell("agent", f"{_AGENT!r} joins, and has the computer's tools in its registry: {', '.join(names)}")
    _expect((await agent.emit_tool_call(_COMPUTER, "add", {"a": 2, "b": 3})).text, "5")
    await story.tell("agent", "calls the Python function add(2, 3) there: 5")
    try:
        await agent.get_tools("basement")
    except ComputerNotFound as error:
        await story.tell("agent", f"asks for a computer that is not in its office: {error}")
    else:
        raise DemoFailed("a computer that is not in the office answered")


async def _watch_desktop(story: _Story, agent: AsyncSMCPAgentClient, notices: _Notices) -> None:
    (before,) = await agent.get_desktop(_COMPUTER)
    await story.tell("agent", f"looks at the desktop: {before!r}")
    _expect(await agent.registry.acall("note", {"text": "call home"}), {"result": "2 notes"})
    async with asyncio.timeout(_PATIENCE):
        (after,) = await notices.desktops.get()
    _expect("- call home" in after, True)
    await story.tell("agent", f"puts a note there, is told that the desktop changed, and sees: {after!r}")


async def _survive_crash(story: _Story, computer: Computer, agent: AsyncSMCPAgentClient) -> None:
    try:
        result = await agent.emit_tool_call(_COMPUTER, "crash")
        _expect(result.is_error, True)
    except SMCPError as error:
        await story.tell("agent", f"calls crash(): {error.message}")
    await _until_ready(computer)
    await _until(lambda: "note" in agent.registry)
    _expect(await agent.registry.acall("note", {"text": "back again"}), {"result": "2 notes"})
    await story.tell("computer", "has started the server again, and its tools work")


async def _cancel_one(story: _Story, computer: Computer, agent: AsyncSMCPAgentClient) -> None:
    before = len(computer.history)
    slow = asyncio.create_task(agent.emit_tool_call(_COMPUTER, "sleep", {"seconds": 60}, req_id="the slow one"))
    await _until(lambda: len(computer.history) > before)
    await story.tell("agent", "calls sleep(60), and thinks better of it")
    await agent.cancel("the slow one")
    try:
        await slow
    except CallCancelled as error:
        await story.tell("agent", f"cancels it: {error}")
    else:
        raise DemoFailed("a cancelled call came back as if nothing had happened")


async def _carry_out_plan(story: _Story, agent: AsyncSMCPAgentClient) -> None:
    """One tool of the agent's own, one of the computer, through one registry (001 §6)."""

    @agent.registry.tool
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    plan: list[Step] = [
        ToolStep("shout", {"text": "done"}),
        ToolStep("add", {"a": 20, "b": 22}),
        ReplyStep("The answer is 42."),
    ]
    await story.tell("agent", "has a tool of its own, shout, beside those of the computer, and a plan for both:")
    done = await run_plan_async(plan, agent.registry)
    _expect([outcome.result for outcome in done.outcomes[:2]], ["DONE", {"result": 42}])
    for outcome in done.outcomes:
        await story.tell("agent", f"  {_told(outcome, agent)}")


def _told(outcome: StepOutcome, agent: AsyncSMCPAgentClient) -> str:
    if isinstance(outcome.step, ReplyStep):
        return f"replies: {outcome.step.text}"
    origin = getattr(agent.registry[outcome.step.name], "origin", "here")
    return f"{outcome.step.name} ({origin}) → {outcome.result!r} in {outcome.duration * 1000:.1f} ms"


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise DemoFailed(f"{found!r} came back in place of {wanted!r}")
