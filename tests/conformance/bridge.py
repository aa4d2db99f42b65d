"""What MCP's conformance suite tests as a bridge: an MCP server behind a Computer, a Server and `a2c-smcp bridge`.

    python bridge.py --port 7100 --upstream http://127.0.0.1:8000/mcp
    conformance server --url http://127.0.0.1:7100/mcp --requirements 2026-07-28

It starts a Server, a Computer that hosts the streamable MCP server at the upstream URL, and a bridge without a key at
`http://127.0.0.1:PORT/mcp`; prints `ready` when all three are, and serves until it is stopped. Nothing is left behind.
The package with `[all]` is all that this program needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge
from a2c_smcp.bridge.serving.http import serve_http
from a2c_smcp.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving

OFFICE, COMPUTER = "conformance", "computer"
ASKING_BY_REQUEST = (
    *("test_sampling", "test_elicitation", "test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"),
)
"""What the suite calls the tools whose requests it waits for, up to 2025-11-25."""


def entry(upstream: str, protocol: str, left_out: Iterable[str]) -> dict[str, Any]:
    """The upstream server for a Computer that lets agents run all its tools, and answer all that it asks."""
    about = {"name": protocol, "type": "streamable", "protocol": protocol, "server_parameters": {"url": upstream}}
    allowed = {"default_tool_meta": {"auto_apply": True}, "questions_for_agents": ["secret", "url"]}
    return {**about, **allowed, "forbidden_tools": [*left_out]}


async def run(port: int, upstream: str, folder: Path) -> None:
    """The upstream server is hosted a second time, in an older revision of MCP, for the tools that ask by requests.

    Newer revisions have no such requests, so a server may not let these tools ask there. All else is of the first one.
    """

    def on_state(name: str, state: str, reason: str) -> None:
        if state in ("backoff", "failed"):
            print(f"{upstream} ({name}): {state}: {reason}", file=sys.stderr, flush=True)

    async with AsyncExitStack() as stack:
        listening = listen("127.0.0.1", 0)
        url = f"http://{address_of(listening)}"
        await stack.enter_async_context(serving(create_app(Settings()), listening))
        computer = Computer(COMPUTER, state_folder=folder, on_state=on_state)
        computer.add_server(entry(upstream, "newest", ASKING_BY_REQUEST))
        running = asyncio.create_task(computer.run(url, office=OFFICE, state_folder=folder))
        stack.callback(running.cancel)
        agent = AsyncSMCPAgentClient("bridge", url=url, office=[])
        bridge = await stack.enter_async_context(Bridge(agent, OFFICE))

        async def until_offered() -> None:
            while not is_decided(computer) or not await is_known(agent, computer):
                await asyncio.wait([running], timeout=0.05)
                if running.done():
                    running.result()

        await until_offered()
        await computer.put_server(entry(upstream, "older", [tool["name"] for tool in computer.get_tools()]))
        await until_offered()
        await serve_http(bridge.http_app(), listen("127.0.0.1", port), lambda: print("ready", flush=True))


def is_decided(computer: Computer) -> bool:
    states = [status.state for status in computer.status().values()]
    return "ready" in states and not {"starting", "stopped"} & {*states}


async def is_known(agent: AsyncSMCPAgentClient, computer: Computer) -> bool:
    """Whether the agent knows all tools, and the resources and prompts of the first server."""
    if len(agent.registry) < len(computer.get_tools()) or not agent.computers:
        return False
    for server in await agent.get_servers(COMPUTER):
        known = {"resources": agent.registry.resources(), "prompts": agent.registry.prompts()}
        is_new = server["name"] == "newest" and server["state"] == "ready"
        for kind in [kind for kind in known if is_new and kind in server["capabilities"]]:
            ask = agent.get_resources if kind == "resources" else agent.get_prompts
            if len(known[kind]) < len((await ask(COMPUTER, server["name"]))[kind]):
                return False
    return True


async def until_stopped(port: int, upstream: str, folder: Path) -> None:
    task, loop = asyncio.create_task(run(port, upstream, folder)), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--upstream", metavar="URL", required=True)
    given = options.parse_args()
    os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"  # tokens go to the folder, and end with it
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(until_stopped(given.port, given.upstream, Path(folder)))
        except (OSError, SMCPError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
