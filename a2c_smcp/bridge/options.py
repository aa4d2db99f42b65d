"""What can be chosen of a bridge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from a2c_smcp.bridge.catalog import CatalogOptions
from a2c_smcp.errors import SMCPError

__all__ = ["BridgeOptions"]


def _message(error: SMCPError) -> str:
    return error.message


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """All of it is optional.

    The names that tools were given are kept in `names_file`. `timeout` is how many seconds a tool may take; for a
    client that wants to know its progress, how long it may be silent. `explain` puts an error into words for the person
    at the MCP client, with what to do about it. A request over HTTP has at most `max_request` bytes. A client of an
    older revision of MCP has a session: there are at most `max_sessions`, and one that is not used for `session_idle`
    seconds is ended. `max_kept` are the bytes of messages that are kept, so that a stream that was cut can be resumed.
    With a `sessions_folder`, sessions go on after a restart, and also after they have been idle for long. `wait` is how
    many seconds the start may take until clients are answered, even if the office was not joined yet. `on_client` is
    called with the name that the client of a request gives itself, for each request. `on_refused` is called with the
    tool of each call that the bridge refuses without sending it, why, and the address of the client if it is known.
    """

    catalog: CatalogOptions = field(default_factory=CatalogOptions)
    names_file: Path | None = None
    timeout: float = 600.0
    explain: Callable[[SMCPError], str] = _message
    max_request: int = 4 * 1024 * 1024
    max_sessions: int = 1000
    session_idle: float = 1800.0
    max_kept: int = 32 * 1024 * 1024
    sessions_folder: Path | None = None
    wait: float = 5.0
    on_client: Callable[[str], None] | None = None
    on_refused: Callable[[str, SMCPError, str | None], None] = field(default=lambda tool, error, address: None)
