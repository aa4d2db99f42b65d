"""What MCP's conformance suite tests as a bridge: an MCP server behind a Computer, a Server and `a2c-smcp bridge`.

    python bridge.py --port 7100 --upstream http://127.0.0.1:8000/mcp
    conformance server --url http://127.0.0.1:7100/mcp --requirements 2026-07-28

It starts a Server, a Computer that hosts the streamable MCP server at the upstream URL, and a bridge without a key at
`http://127.0.0.1:PORT/mcp`; prints `ready` when all three are, and serves until it is stopped. Nothing is left behind.
With `--signed-in` the Server's own bridge takes the place of that one, at `/mcp/conformance`, for a client that has
signed in: its token is added to each request, because the suite sends none.
The package with `[all]` is all that this program needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge
from a2c_smcp.bridge.on_server import PREFIXES, OfficesAsMCPServers
from a2c_smcp.bridge.serving.http import serve_http
from a2c_smcp.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, SignIn, SMCPApp, create_app
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.auth.authorization import Client, CodeRequest, GrantHolder
from a2c_smcp.server.run import address_of, listen, serving
from a2c_smcp.web import ASGIApp, Receive, Scope, Send

OFFICE, COMPUTER, KEY = "conformance", "computer", new_key()
ASKING_BY_REQUEST = (
    *("test_sampling", "test_elicitation", "test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"),
)
"""What the suite calls the tools whose requests it waits for, up to 2025-11-25."""


def entry(upstream: str, protocol: str, left_out: Iterable[str]) -> dict[str, Any]:
    """The upstream server for a Computer that lets agents run all its tools, and answer all that it asks."""
    about = {"name": protocol, "type": "streamable", "protocol": protocol, "server_parameters": {"url": upstream}}
    allowed = {"default_tool_meta": {"auto_apply": True}, "questions_for_agents": ["secret", "url"]}
    return {**about, **allowed, "forbidden_tools": [*left_out]}


async def signed_in(app: SMCPApp) -> ASGIApp:
    """The Server, for requests without a token: the one of a client that a person has allowed is added to them."""
    assert app.grants
    verifier, redirect = "v" * 43, "http://127.0.0.1/callback"
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
    client, person = Client("suite", "Suite", (redirect,)), GrantHolder("suite", is_by_link=True)
    code = await app.grants.new_code(CodeRequest(client.id, redirect, challenge, OFFICE), client, person)
    form = {"code": code, "client_id": client.id, "redirect_uri": redirect, "code_verifier": verifier}
    tokens = await app.grants.exchange(form, OFFICE)
    bearer = (b"authorization", f"Bearer {tokens.access}".encode())

    async def with_token(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "headers": [*scope.get("headers", ()), bearer]}, receive, send)

    return with_token


async def run(port: int, upstream: str, folder: Path, *, is_signed_in: bool) -> None:
    """The upstream server is hosted a second time, in an older revision of MCP, for the tools that ask by requests.

    Newer revisions have no such requests, so a server may not let these tools ask there. All else is of the first one.
    """

    def on_state(name: str, state: str, reason: str) -> None:
        if state in ("backoff", "failed"):
            print(f"{upstream} ({name}): {state}: {reason}", file=sys.stderr, flush=True)

    async with AsyncExitStack() as stack:
        listening = listen("127.0.0.1", 0)
        url = f"http://{address_of(listening)}"
        auth = DefaultAuthenticationProvider(KEY)
        sign_in = SignIn(public_url=url) if is_signed_in else None
        app = create_app(Settings(auth=auth, sign_in=sign_in, trusted_hosts=frozenset()))
        app.mount(OfficesAsMCPServers(app, url), *PREFIXES)
        await stack.enter_async_context(serving(app, listening))
        computer = Computer(COMPUTER, state_folder=folder, on_state=on_state)
        computer.add_server(entry(upstream, "newest", ASKING_BY_REQUEST))
        running = asyncio.create_task(computer.run(url, office=OFFICE, state_folder=folder, api_key=KEY))
        stack.callback(running.cancel)
        agent = AsyncSMCPAgentClient("bridge", url=url, office=[], api_key=KEY)
        bridge = await stack.enter_async_context(Bridge(agent, OFFICE))

        async def until_offered() -> None:
            while not is_decided(computer) or not await is_known(agent, computer):
                await asyncio.wait([running], timeout=0.05)
                if running.done():
                    running.result()

        await until_offered()
        await computer.put_server(entry(upstream, "older", [tool["name"] for tool in computer.get_tools()]))
        await until_offered()
        served = bridge.http_app()
        if is_signed_in:
            await bridge.leave()
            served = await signed_in(app)
        await serve_http(served, listen("127.0.0.1", port), lambda: print("ready", flush=True))


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


async def until_stopped(given: argparse.Namespace, folder: Path) -> None:
    work = run(given.port, given.upstream, folder, is_signed_in=given.signed_in)
    task, loop = asyncio.create_task(work), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--upstream", metavar="URL", required=True)
    options.add_argument("--signed-in", action="store_true")
    given = options.parse_args()
    os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"  # tokens go to the folder, and end with it
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(until_stopped(given, Path(folder)))
        except (OSError, SMCPError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
