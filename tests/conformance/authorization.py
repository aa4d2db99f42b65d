"""What MCP's conformance suite tests as an authorization server: a Server with `sign_in`, for its own offices.

    python authorization.py
    conformance authorization --url URL --client-id ID --resource URL/mcp/conformance --port 3000

It starts a Server, registers a client, and prints its URL, the id of the client and the key of a person who may sign
in; then it serves until it is stopped. Nothing is left behind. The package with `[all]` is all that it needs.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress

from a2c_smcp.bridge.on_server import PREFIXES, OfficesAsMCPServers
from a2c_smcp.console import sign_in
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.auth.clients import Clients
from a2c_smcp.server.auth.grants import SignIn
from a2c_smcp.server.run import address_of, listen, serving

CALLBACK = "http://127.0.0.1/callback"


async def main() -> None:
    listening, stopped, key = listen("127.0.0.1", 0), asyncio.Event(), new_key()
    url = f"http://{address_of(listening)}"
    app = create_app(Settings(auth=DefaultAuthenticationProvider(key), sign_in=SignIn(public_url=url)))
    app.mount(OfficesAsMCPServers(app, url), *PREFIXES)
    app.mount(sign_in.SignInPages(app), *sign_in.PREFIXES, has_cors=False)
    assert app.grants
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serving(app, listening):
        client = await Clients(app.grants).register({"redirect_uris": [CALLBACK], "client_name": "Conformance"})
        print(json.dumps({"url": url, "client": client.id, "key": key}), flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
