"""`a2c-smcp demo`: a Server, a computer and an agent on this machine, told as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from uuid import uuid4

import socketio
import typer

from a2c_smcp import smcp
from a2c_smcp.cli.loop import run
from a2c_smcp.errors import CallCancelled, ComputerNotFound, NotAuthenticated, SMCPError
from a2c_smcp.protocol.results import CallToolResult, failed_call
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.auth import new_key
from a2c_smcp.server.run import address_of, listen, serving

__all__ = ["demo"]

_OFFICE, _AGENT, _COMPUTER = "desk", "planner", "laptop"
_COLOURS = {"server": "magenta", "stranger": "red", "computer": "green", "agent": "cyan"}
_PATIENCE = 5.0


class DemoFailed(Exception):
    """Something that the demo claims did not happen."""


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause for a reader.")] = False,
) -> None:
    """See it work: a Server, a computer and an agent on this machine.

    Everything is real: sockets, an API key, offices. The command succeeds only if all it tells has happened.

    Examples:

    \b
    a2c-smcp demo
    a2c-smcp demo --fast
    """
    try:
        run(_tell(_Story(pause=0 if fast else 0.4)))
    except (DemoFailed, SMCPError, OSError, TimeoutError, socketio.exceptions.SocketIOError) as error:
        typer.secho(f"\nthe demo failed: {error}", fg="red", err=True)
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


class _Client:
    """One of the two sides: a plain Socket.IO client, as anybody's program might use."""

    def __init__(self) -> None:
        self._socket = socketio.AsyncClient(reconnection=False, handle_sigint=False)
        self._notices: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.refusal: dict[str, Any] | None = None
        self._socket.on("*", self._on_notice, namespace=smcp.SMCP_NAMESPACE)
        self._socket.on("connect_error", self._on_refusal, namespace=smcp.SMCP_NAMESPACE)

    async def connect(self, url: str, key: str) -> None:
        auth = {"token": key}
        await self._socket.connect(url, auth=auth, namespaces=[smcp.SMCP_NAMESPACE], wait_timeout=_PATIENCE)

    def on(self, event: str, handler: Callable[[Any], Awaitable[Any]]) -> None:
        self._socket.on(event, handler, namespace=smcp.SMCP_NAMESPACE)

    async def ask(self, event: str, **data: Any) -> Any:
        answer = await self._socket.call(event, data, namespace=smcp.SMCP_NAMESPACE, timeout=_PATIENCE)
        if error := SMCPError.from_wire(answer):
            raise error
        return answer

    async def join(self, role: str, name: str) -> None:
        accepted, reason = await self.ask(smcp.JOIN_OFFICE_EVENT, role=role, name=name, office_id=_OFFICE)
        if not accepted:
            raise SMCPError.from_text(reason)

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


class _Laptop(_Client):
    """A computer with two tools. A real one would find them at its MCP servers."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, asyncio.Task[CallToolResult]] = {}
        self.is_busy = asyncio.Event()
        self.has_stopped = asyncio.Event()
        self.on(smcp.GET_TOOLS_EVENT, self._get_tools)
        self.on(smcp.TOOL_CALL_EVENT, self._call)
        self.on(smcp.CANCEL_TOOL_CALL_NOTIFICATION, self._cancel)

    async def _get_tools(self, request: smcp.GetToolsReq) -> smcp.GetToolsRet:
        schema = {"type": "object"}
        tools = [
            smcp.SMCPTool(name="add", description="Add two numbers", params_schema=schema, return_schema=None),
            smcp.SMCPTool(name="sleep", description="Take a long time", params_schema=schema, return_schema=None),
        ]
        return smcp.GetToolsRet(tools=tools, req_id=request["req_id"])

    async def _call(self, request: smcp.ToolCallReq) -> dict[str, Any]:
        task = asyncio.create_task(self._work(request["tool_name"], request["params"]))
        self.running[request["req_id"]] = task
        try:
            return (await task).to_wire()
        except asyncio.CancelledError:
            return failed_call(CallCancelled())

    async def _work(self, tool: str, params: dict[str, Any]) -> CallToolResult:
        if tool == "sleep":
            await self._sleep(params["seconds"])
        return CallToolResult([{"type": "text", "text": str(params.get("a", 0) + params.get("b", 0))}])

    async def _sleep(self, seconds: float) -> None:
        self.is_busy.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.has_stopped.set()
            raise

    async def _cancel(self, notice: smcp.AgentCallData) -> None:
        self.running[notice["req_id"]].cancel()


async def _tell(story: _Story) -> None:
    typer.secho("A2C-SMCP: an agent uses the tools of a computer it cannot reach, through a Server\n", bold=True)
    key, listener = new_key(), listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    laptop, agent = _Laptop(), _Client()
    async with serving(create_app(Settings(auth=DefaultAuthenticationProvider(key))), listener):
        await story.tell("server", f"listens on {url} and wants an API key")
        try:
            await _meet(story, url, key, laptop, agent)
            await _work(story, laptop, agent)
            await _part(story, laptop, agent)
        finally:
            await agent.close()
            await laptop.close()
    await story.tell("server", "stops: nobody is left inside, nothing is in flight")
    typer.secho(f"\nall of this really happened, in {time.perf_counter() - story.began:.1f} s", bold=True)
    typer.echo("next: a2c-smcp server --help")


async def _meet(story: _Story, url: str, key: str, laptop: _Laptop, agent: _Client) -> None:
    stranger = _Client()
    try:
        await stranger.connect(url, "a wrong key")
    except socketio.exceptions.ConnectionError:
        if (code := (stranger.refusal or {}).get("data", {}).get("code")) != NotAuthenticated.code:
            raise DemoFailed(f"a stranger was refused with {code} in place of 401") from None
        await story.tell("stranger", "knocks with a wrong key and is turned away: 401")
    else:
        raise DemoFailed("a stranger came in with a wrong key")
    finally:
        await stranger.close()
    await laptop.connect(url, key)
    await laptop.join("computer", _COMPUTER)
    await story.tell("computer", f"{_COMPUTER!r} dials out, so it needs no open port, and joins office {_OFFICE!r}")
    await agent.connect(url, key)
    await agent.join("agent", _AGENT)
    told = await laptop.hears(smcp.ENTER_OFFICE_NOTIFICATION)
    await story.tell("agent", f"{_AGENT!r} joins the same office, and the computer is told: {told}")


async def _work(story: _Story, laptop: _Laptop, agent: _Client) -> None:
    listing = await agent.ask(smcp.GET_TOOLS_EVENT, agent=_AGENT, req_id=uuid4().hex, computer=_COMPUTER)
    names = ", ".join(tool["name"] for tool in listing["tools"])
    await story.tell("agent", f"asks {_COMPUTER!r} for its tools: {names}")
    call = {"agent": _AGENT, "computer": _COMPUTER, "timeout": 60}
    result = await agent.ask(smcp.TOOL_CALL_EVENT, **call, req_id=uuid4().hex, tool_name="add", params={"a": 2, "b": 3})
    text = CallToolResult.from_wire(result).text
    if text != "5":
        raise DemoFailed(f"2 + 3 came back as {text!r}")
    await story.tell("agent", f"calls add(2, 3) there: {text}")
    try:
        await agent.ask(smcp.GET_TOOLS_EVENT, agent=_AGENT, req_id=uuid4().hex, computer="basement")
    except ComputerNotFound as error:
        await story.tell("agent", f"asks for a computer that is not in its office: {error}")
    else:
        raise DemoFailed("a computer that is not in the office answered")
    await _cancel_one(story, laptop, agent, call)


async def _cancel_one(story: _Story, laptop: _Laptop, agent: _Client, call: dict[str, Any]) -> None:
    req_id = uuid4().hex
    slow = asyncio.create_task(
        agent.ask(smcp.TOOL_CALL_EVENT, **call, req_id=req_id, tool_name="sleep", params={"seconds": 60})
    )
    async with asyncio.timeout(_PATIENCE):
        await laptop.is_busy.wait()
    await story.tell("agent", "calls sleep(60), and thinks better of it")
    await agent.ask(smcp.CANCEL_TOOL_CALL_EVENT, agent=_AGENT, req_id=req_id)
    try:
        await slow
    except CallCancelled as error:
        if not laptop.has_stopped.is_set():
            raise DemoFailed("the computer did not stop when its call was cancelled") from None
        await story.tell("agent", f"cancels it, the computer stops and answers: {error}")
    else:
        raise DemoFailed("a cancelled call came back as if nothing had happened")


async def _part(story: _Story, laptop: _Laptop, agent: _Client) -> None:
    await laptop.ask(smcp.UPDATE_TOOL_LIST_EVENT, computer=_COMPUTER)
    told = await agent.hears(smcp.UPDATE_TOOL_LIST_NOTIFICATION)
    await story.tell("computer", f"says that its tools have changed, and the agent is told: {told}")
    await laptop.ask(smcp.LEAVE_OFFICE_EVENT, office_id=_OFFICE)
    told = await agent.hears(smcp.LEAVE_OFFICE_NOTIFICATION)
    await story.tell("computer", f"leaves the office, and the agent is told: {told}")
