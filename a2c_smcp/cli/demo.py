"""`a2c-smcp demo`: a Server, a Computer and an agent on this machine, told as it happens."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import socketio
import typer

from a2c_smcp import smcp
from a2c_smcp.cli import demo_server, logs
from a2c_smcp.cli.loop import run
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import CallCancelled, ComputerNotFound, NotAuthenticated, SMCPError
from a2c_smcp.protocol.results import CallToolResult
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

    Everything is real: sockets, an API key, an office, an MCP server in a process of its own. The command succeeds only
    if all it tells has happened.

    Examples:

    \b
    a2c-smcp demo
    a2c-smcp demo --fast
    """
    logs.set_up(logs.Level.error)
    try:
        run(_tell(_Story(pause=0 if fast else 0.15)))
    except (DemoFailed, SMCPError, OSError, TimeoutError, socketio.exceptions.SocketIOError) as error:
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


class _Agent:
    """The agent's side: a plain Socket.IO client, as anybody's program might use."""

    def __init__(self) -> None:
        self._socket = socketio.AsyncClient(reconnection=False, handle_sigint=False)
        self._notices: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.refusal: dict[str, Any] = {}
        self._socket.on("*", self._on_notice, namespace=smcp.SMCP_NAMESPACE)
        self._socket.on("connect_error", self._on_refusal, namespace=smcp.SMCP_NAMESPACE)

    async def connect(self, url: str, key: str) -> None:
        auth = {"token": key}
        await self._socket.connect(url, auth=auth, namespaces=[smcp.SMCP_NAMESPACE], wait_timeout=_PATIENCE)

    async def ask(self, event: str, **data: Any) -> Any:
        answer = await self._socket.call(event, data, namespace=smcp.SMCP_NAMESPACE, timeout=_PATIENCE)
        if error := SMCPError.from_wire(answer):
            raise error
        return answer

    async def join(self) -> None:
        accepted, reason = await self.ask(smcp.JOIN_OFFICE_EVENT, role="agent", name=_AGENT, office_id=_OFFICE)
        if not accepted:
            raise SMCPError.from_text(reason)

    async def request(self, event: str, computer: str = _COMPUTER, **more: Any) -> Any:
        return await self.ask(event, **{"agent": _AGENT, "req_id": uuid4().hex, "computer": computer, **more})

    async def call(self, tool: str, **params: Any) -> CallToolResult:
        answer = await self.request(smcp.TOOL_CALL_EVENT, tool_name=tool, params=params, timeout=60)
        return CallToolResult.from_wire(answer)

    async def hears(self, event: str) -> Any:
        async with asyncio.timeout(_PATIENCE):
            while (notice := await self._notices.get())[0] != event:
                pass
        return notice[1]

    async def close(self) -> None:
        await self._socket.disconnect()

    async def _on_refusal(self, reason: dict[str, Any]) -> None:
        self.refusal = reason

    async def _on_notice(self, event: str, data: Any) -> None:
        self._notices.put_nowait((event, data))


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
    async with asyncio.timeout(_PATIENCE):
        while computer.status()["notes"].state != "ready":  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.02)


async def _tell(story: _Story) -> None:
    typer.secho("A2C-SMCP: an agent uses the tools of a computer it cannot reach, through a Server\n", bold=True)
    key, listener = new_key(), listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    computer, agent = _laptop(), _Agent()
    async with serving(create_app(Settings(auth=DefaultAuthenticationProvider(key))), listener):
        await story.tell("server", f"listens on {url} and wants an API key")
        await _refuse_stranger(story, url)
        async with _joined(computer, url, key):
            await story.tell("computer", f"{_COMPUTER!r} starts its MCP server, dials out and joins office {_OFFICE!r}")
            try:
                await agent.connect(url, key)
                await agent.join()
                await story.tell("agent", f"{_AGENT!r} joins the same office")
                await _use_tools(story, agent)
                await _watch_desktop(story, agent)
                await _survive_crash(story, computer, agent)
                await _cancel_one(story, computer, agent)
            finally:
                await agent.close()
        await story.tell("computer", "leaves, and its MCP server ends with it")
    await story.tell("server", "stops: nobody is left inside, nothing is in flight")
    typer.secho(f"\nall of this really happened, in {time.perf_counter() - story.began:.1f} s", bold=True)
    typer.echo("next: a2c-smcp server --help, a2c-smcp computer --help")


async def _refuse_stranger(story: _Story, url: str) -> None:
    stranger = _Agent()
    try:
        await stranger.connect(url, "a wrong key")
    except socketio.exceptions.ConnectionError:
        if (code := stranger.refusal.get("data", {}).get("code")) != NotAuthenticated.code:
            raise DemoFailed(f"a stranger was refused with {code} in place of 401") from None
        await story.tell("stranger", "knocks with a wrong key and is turned away: 401")
    else:
        raise DemoFailed("a stranger came in with a wrong key")
    finally:
        await stranger.close()


async def _use_tools(story: _Story, agent: _Agent) -> None:
    listing = await agent.request(smcp.GET_TOOLS_EVENT)
    names = [tool["name"] for tool in listing["tools"]]
    if not {"add", "note"} <= set(names):
        raise DemoFailed(f"tools are missing: {names}")
    await story.tell("agent", f"asks for the tools of the computer: {', '.join(names)}")
    _expect((await agent.call("add", a=2, b=3)).text, "5")
    await story.tell("agent", "calls the Python function add(2, 3) there: 5")
    try:
        await agent.request(smcp.GET_TOOLS_EVENT, computer="basement")
    except ComputerNotFound as error:
        await story.tell("agent", f"asks for a computer that is not in its office: {error}")
    else:
        raise DemoFailed("a computer that is not in the office answered")


async def _watch_desktop(story: _Story, agent: _Agent) -> None:
    (before,) = (await agent.request(smcp.GET_DESKTOP_EVENT))["desktops"]
    await story.tell("agent", f"looks at the desktop: {before!r}")
    _expect((await agent.call("note", text="call home")).text, "2 notes")
    await agent.hears(smcp.UPDATE_DESKTOP_NOTIFICATION)
    (after,) = (await agent.request(smcp.GET_DESKTOP_EVENT))["desktops"]
    _expect("- call home" in after, True)
    await story.tell("agent", f"puts a note there, is told that the desktop changed, and sees: {after!r}")


async def _survive_crash(story: _Story, computer: Computer, agent: _Agent) -> None:
    try:
        result = await agent.call("crash")
        _expect(result.is_error, True)
    except SMCPError as error:
        await story.tell("agent", f"calls crash(): {error.message}")
    await _until_ready(computer)
    _expect((await agent.call("note", text="back again")).text, "2 notes")
    await story.tell("computer", "has started the server again, and its tools work")


async def _cancel_one(story: _Story, computer: Computer, agent: _Agent) -> None:
    req_id, before = uuid4().hex, len(computer.history)
    call: dict[str, Any] = {"tool_name": "sleep", "params": {"seconds": 60}, "timeout": 60}
    slow = asyncio.create_task(agent.request(smcp.TOOL_CALL_EVENT, req_id=req_id, **call))
    async with asyncio.timeout(_PATIENCE):
        while len(computer.history) == before:  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.02)
    await story.tell("agent", "calls sleep(60), and thinks better of it")
    await agent.ask(smcp.CANCEL_TOOL_CALL_EVENT, agent=_AGENT, req_id=req_id)
    try:
        await slow
    except CallCancelled as error:
        await story.tell("agent", f"cancels it: {error}")
    else:
        raise DemoFailed("a cancelled call came back as if nothing had happened")


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise DemoFailed(f"{found!r} came back in place of {wanted!r}")
