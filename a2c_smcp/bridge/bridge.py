"""An office as an MCP server: every MCP client that connects to it is an agent there."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge.office.office import BridgedOffice
from a2c_smcp.bridge.options import BridgeOptions
from a2c_smcp.bridge.serving.http import http_app
from a2c_smcp.bridge.serving.server import OfficeServer
from a2c_smcp.http.asgi import ASGIApp
from a2c_smcp.http.loopback import LOOPBACK_HOSTS

__all__ = ["Bridge", "BridgeOptions"]

logger = logging.getLogger(__name__)


class Bridge:
    """Joins an office with an agent, and serves it to MCP clients.

    ```python
    agent = AsyncSMCPAgentClient("bridge", url="http://127.0.0.1:7000", office=[], api_key="…")
    async with Bridge(agent, "desk") as bridge:
        await bridge.serve_stdio()
    ```

    The agent belongs to the bridge: it must not be connected yet, nor sit in other offices. An office that cannot be
    joined is tried again for as long as the bridge is open, and clients are told why there is nothing to use
    (`trouble`).
    """

    def __init__(
        self,
        agent: AsyncSMCPAgentClient,
        office: str,
        options: BridgeOptions = BridgeOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._office = BridgedOffice(agent, office, options)
        self._options = options

    async def __aenter__(self) -> Self:
        await self._office.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._office.close()

    @property
    def trouble(self) -> str | None:
        """Why the office cannot be used now, and what to do about it; `None` if it can."""
        return self._office.trouble

    @property
    def is_busy(self) -> bool:
        """Whether a request of a client is being answered by the office."""
        return self._office.membership.is_busy

    async def leave(self) -> None:
        """Leave the office until `enter` is called. Clients keep their sessions."""
        await self._office.membership.leave()

    async def enter(self) -> None:
        """Wait a moment until the office is joined. Raises the `SMCPError` that keeps the bridge out of it."""
        await self._office.membership.enter()

    async def serve_stdio(self) -> None:
        """Serve one client on standard input and output, until it disconnects."""
        server = OfficeServer(self._office)
        try:
            async with stdio_server() as (read, write):
                try:
                    async with server.lifespan(server) as state:
                        await serve_dual_era_loop(server, read, write, lifespan_state=state)
                finally:
                    sys.stdout.flush()  # to standard error, as long as the SDK has its place
        except* BrokenPipeError:
            logger.info("the client reads no more")

    def http_app(
        self,
        path: str = "/mcp",
        *,
        allowed_hosts: Sequence[str] = LOOPBACK_HOSTS,
        allowed_origins: Sequence[str] = (),
    ) -> ASGIApp:
        """Return an ASGI application for streamable HTTP. Its lifespan must be run. It authenticates nobody.

        Against DNS rebinding, only requests to `allowed_hosts` are answered, at any port, and only if they come from no
        web page, from one of these hosts, or from one of the `allowed_origins` (`"https://example.com"`).
        """
        return http_app(OfficeServer(self._office), self._options, path, allowed_hosts, allowed_origins)
