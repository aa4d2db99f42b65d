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
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge
from a2c_smcp.bridge.serving.http import serve_http
from a2c_smcp.computer import Computer
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving

OFFICE = "conformance"
ASKING_BY_REQUEST = (
    "test_sampling",
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
)
"""What the suite calls the tools whose requests it waits for, up to 2025-11-25."""


def hosting(upstream: str, folder: Path, on_state: Callable[..., None]) -> Computer:
    """A Computer that lets agents run all tools of the upstream server, and answer all that it asks.

    It hosts the server a second time, in an older revision of MCP, for the tools that ask by requests of their own:
    newer revisions have no such requests, so a server may not let these tools ask there.
    """
    computer = Computer("computer", state_folder=folder, on_state=on_state)
    for protocol, left_out in (("newest", ASKING_BY_REQUEST), ("older", ())):
        computer.add_server(
            {
                "name": protocol,
                "type": "streamable",
                "protocol": protocol,
                "server_parameters": {"url": upstream},
                "default_tool_meta": {"auto_apply": True},
                "forbidden_tools": [*left_out],
                "questions_for_agents": ["secret", "url"],
            }
        )
    return computer


async def run(port: int, upstream: str, folder: Path) -> None:
    changed = asyncio.Event()
    async with AsyncExitStack() as stack:
        listening = listen("127.0.0.1", 0)
        url = f"http://{address_of(listening)}"
        await stack.enter_async_context(serving(create_app(Settings()), listening))
        computer = hosting(upstream, folder, lambda *_: changed.set())
        running = asyncio.create_task(computer.run(url, office=OFFICE, state_folder=folder))
        running.add_done_callback(lambda _: changed.set())
        stack.callback(running.cancel)
        agent = AsyncSMCPAgentClient("bridge", url=url, office=[])
        agent.registry.on_change(changed.set)
        bridge = await stack.enter_async_context(Bridge(agent, OFFICE))
        while not is_offered(computer, agent):
            changed.clear()
            await changed.wait()
            if running.done():
                running.result()
        door = listen("127.0.0.1", port)
        await serve_http(bridge.http_app(), door, lambda: print("ready", flush=True))


def is_offered(computer: Computer, agent: AsyncSMCPAgentClient) -> bool:
    """Whether both connections to the upstream server are decided, and the agent knows all tools."""
    states = [status.state for status in computer.status().values()]
    is_decided = "ready" in states and not {"starting", "stopped"} & {*states}
    return is_decided and len(agent.registry) >= len(computer.get_tools())


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
