"""An office as an MCP server: every MCP client that connects to it is an agent there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge.office import BridgedOffice, BridgeOptions
from a2c_smcp.bridge.serving.calls import CallLogs, OfficeServer
from a2c_smcp.bridge.serving.http import http_app
from a2c_smcp.web import LOOPBACK_HOSTS, ASGIApp

logger = logging.getLogger(__name__)


class Bridge:
    """Joins an office with an agent, and serves it to MCP clients.

    ```python
    agent = AsyncSMCPAgentClient("bridge", url="http://127.0.0.1:7000", office=[], api_key="…")
    async with Bridge(agent, "desk") as bridge:
        await bridge.serve_stdio()
    ```

    The agent belongs to the bridge: it must not be connected yet, nor sit in other offices. An office that cannot be
    joined is tried again for as long as the bridge is open, and clients see the reason (`trouble`).
    """

    def __init__(
        self,
        agent: AsyncSMCPAgentClient,
        office: str,
        options: BridgeOptions = BridgeOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._office = BridgedOffice(agent, office, options)
        self._logs = CallLogs(agent, office)
        self._options = options
        self._servers: dict[BridgeOptions, OfficeServer] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._logs.open()
        await self._office.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        await self._office.close()
        self._logs.close()

    @property
    def trouble(self) -> str | None:
        """The reason why the office cannot be used now, and its remedy; `None` if it can."""
        return self._office.trouble

    @property
    def is_busy(self) -> bool:
        """True while the office answers a request of a client."""
        return self._office.membership.is_busy

    async def leave(self) -> None:
        """Leave the office until `enter` is called. Clients keep their sessions."""
        await self._office.membership.leave()

    async def enter(self, *, is_contested: bool = False) -> None:
        """Wait a moment until the office is joined; not if it `is_contested`, and another agent has it.

        Raises the `SMCPError` that keeps the bridge out of it.
        """
        await self._office.membership.enter(is_contested=is_contested)

    async def serve_stdio(self) -> None:
        """Serve one client on standard input and output, until it disconnects."""
        try:
            await OfficeServer(self._office, self._logs, self._options).serve_stdio()
        except* BrokenPipeError:
            logger.info("the client reads no more")

    async def serve(self, read: Any, write: Any, options: BridgeOptions) -> None:
        """Serve one client of several at these streams, until it disconnects. All with equal options share a server."""
        server = self._servers.get(options)
        if server is None:
            server = self._servers[options] = OfficeServer(self._office, self._logs, options)
            await self._stack.enter_async_context(server.running())
        await server.serve(read, write)

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
        server = OfficeServer(self._office, self._logs, self._options)
        return http_app(server, self._options, path, allowed_hosts, allowed_origins)
