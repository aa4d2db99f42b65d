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
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge
from a2c_smcp.bridge.serving.http import serve_http
from a2c_smcp.computer import Computer
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving

OFFICE = "conformance"


def computer(upstream: str, folder: Path) -> Computer:
    """Lets agents run all tools of the upstream server, and answer all that it asks."""
    found = Computer("computer", state_folder=folder)
    found.add_server(
        {
            "name": "upstream",
            "type": "streamable",
            "server_parameters": {"url": upstream},
            "default_tool_meta": {"auto_apply": True},
            "questions_for_agents": ["secret", "url"],
        }
    )
    return found


async def offers_of(agent: AsyncSMCPAgentClient) -> None:
    """Wait until the agent knows what the upstream server offers."""
    changed = asyncio.Event()
    agent.registry.on_change(changed.set)
    while not len(agent.registry):
        changed.clear()
        await changed.wait()


async def run(port: int, upstream: str, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        listening = listen("127.0.0.1", 0)
        url = f"http://{address_of(listening)}"
        await stack.enter_async_context(serving(create_app(Settings()), listening))
        hosting = asyncio.create_task(computer(upstream, folder).run(url, office=OFFICE, state_folder=folder))
        stack.callback(hosting.cancel)
        agent = AsyncSMCPAgentClient("bridge", url=url, office=[])
        bridge = await stack.enter_async_context(Bridge(agent, OFFICE))
        offered = asyncio.ensure_future(offers_of(agent))
        stack.callback(offered.cancel)
        await asyncio.wait([offered, hosting], return_when=asyncio.FIRST_COMPLETED)
        if hosting.done():
            hosting.result()
        door = listen("127.0.0.1", port)
        await serve_http(bridge.http_app(), door, lambda: print("ready", flush=True))


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
        asyncio.run(until_stopped(given.port, given.upstream, Path(folder)))


if __name__ == "__main__":
    main()
