"""`a2c-smcp demo`: a Server, a Computer and an agent on this machine, printing each step."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.cli import logs
from a2c_smcp.cli.demo.steps import (
    AGENT,
    COMPUTER,
    OFFICE,
    STEPS,
    DemoContext,
    DemoFailed,
    StepPrinter,
    is_alive,
    pids,
    refuse_stranger,
    running,
    until,
)
from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.suggestions import invocation
from a2c_smcp.computer.approval import ApprovalRequest
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.installation import install_command
from a2c_smcp.loops import run_program
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.run import address_of, listen, serving

__all__ = ["demo"]

_MCP_SERVERS = "a2c_smcp.cli.demo.mcp_servers"
"""Only run, in processes of their own: importing it would load the MCP server library here."""


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause for a reader.")] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Three nodes on one Valkey, one of which is killed under load.")
    ] = False,
) -> None:
    """See it work: a Server, a Computer and an agent on this machine.

    Everything is real: sockets, an API key, an office, two MCP servers in processes of their own, one of which is
    killed. The command succeeds only if everything that it prints has happened.

    Examples:

    \b
    a2c-smcp demo
    a2c-smcp demo --fast
    a2c-smcp demo --cluster
    """
    logs.set_up(logs.LogLevel.error)
    run_cluster_demo = _cluster() if cluster else _run_demo
    try:
        run_program(run_cluster_demo(StepPrinter(pause=0 if fast else 0.25)))
    except (DemoFailed, SMCPError, OSError, TimeoutError) as error:
        what = f"The demo failed: {error or type(error).__name__}"
        raise Failed(what, "If it fails again, run it as `a2c-smcp --debug demo` and report what it prints.") from None


def _cluster() -> Callable[[StepPrinter], Coroutine[Any, Any, None]]:
    try:
        from a2c_smcp.cli.demo.cluster import run_cluster_demo
    except ModuleNotFoundError as error:
        remedy = f"Install a2c-smcp with its extra: {install_command('workers')}"
        raise Failed(f"{error.name} is not installed, and --cluster needs it", remedy) from None
    return run_cluster_demo


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
    program = shlex.join(invocation())
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
