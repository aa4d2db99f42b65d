"""`--mcp`: every office of a Server as an MCP server at `/mcp/<office>`, mounted on that Server."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from a2c_smcp.cli.bridging.keys import kept_file
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import E2E
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import NotPrivate
from a2c_smcp.server.app import SMCPApp
from a2c_smcp.server.run import address_of, listen

__all__ = ["DEFAULT_IDLE", "MCPOptions", "check_processes", "mcp_url", "mount_offices"]

logger = logging.getLogger(__name__)

DEFAULT_IDLE = 60
"""Seconds after the last request of an MCP client until its agent leaves the office."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPOptions:
    """`issuer` is the one that tokens must have, if the Server accepts tokens.

    With `e2e`, calls are sealed between this Server's own agents and computers. MCP clients are not the end of that
    seal, this process is: it reads along.
    """

    idle: float = DEFAULT_IDLE
    issuer: str | None = None
    e2e: E2E = E2E.off

    @property
    def authorization_servers(self) -> tuple[str, ...]:
        """Where MCP clients may get a token. An issuer that is no URL tells them nothing."""
        is_url = self.issuer is not None and urlsplit(self.issuer).scheme in ("http", "https")
        return (self.issuer,) if self.issuer and is_url else ()


def mount_offices(app: SMCPApp, place: str, options: MCPOptions) -> socket.socket:
    """Serves the offices of a Server that clients reach at the URL `place`.

    Returns the listener on which the Server must serve its own agents.
    """
    # MCP's SDK takes a second to import: a Server without --mcp does not wait for it.
    from a2c_smcp.bridge.on_server import PREFIXES, OfficesAsMCPServers
    from a2c_smcp.bridge.options import BridgeOptions
    from a2c_smcp.bridge.seats import Occupant, SeatOptions
    from a2c_smcp.cli.bridging.run import explain_with

    def bridge(occupant: Occupant) -> BridgeOptions:
        office = occupant.office
        return BridgeOptions(
            names_file=_kept(place, office, "json"),
            sessions_folder=_kept(place, f"{office}\n{occupant.principal}\n{occupant.name}", "sessions"),
            explain=explain_with(place, office, None),
            max_request=app.settings.limits.max_message,
        )

    own = listen("127.0.0.1", 0)
    seats = SeatOptions(
        idle=options.idle,
        bridge=bridge,
        e2e=options.e2e.value,
        origin=Endpoint(url=place).origin,
        on_seen=app.observation.report,
        on_refused=app.hub.refuse_handshake,
        on_call_refused=app.observation.report_refused,
    )
    url = f"http://{address_of(own)}"
    app.mount(OfficesAsMCPServers(app.authenticate, url, options.authorization_servers, seats), *PREFIXES)
    return own


def _kept(place: str, what: str, ending: str) -> Path | None:
    """Where names of tools and sessions are kept, so that a restart changes none; `None` if there is no such place."""
    try:
        return kept_file(place, what, ending)
    except (OSError, NotPrivate) as error:
        logger.warning("names of tools may change with a restart, and sessions end with it: %s", error)
        return None


def mcp_url(place: str, office: str | None = None) -> str:
    """The URL of an office as an MCP server; without one, how it is made."""
    return f"{place}/mcp/{'<office>' if office is None else quote(office, safe='')}"


def check_processes(workers: int | None, *, with_mcp: bool) -> None:
    """Raises `WrongUse`: what an MCP client has begun in one process is unknown in the others."""
    if workers and with_mcp:
        raise WrongUse(
            "--mcp needs one process, because an MCP session lives in one, and --workers starts several",
            "Leave out --workers, or run `a2c-smcp bridge --office OFFICE --port 7100` beside this Server.",
        )
