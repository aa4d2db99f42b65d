"""What agents get from a server that nobody is signed in to (WIRE §9): it says who has to do what, and no more.

What the server said is for the owner, in the state of the server and in the log.
"""

from __future__ import annotations

from typing import Any

from a2c_smcp.errors import AuthorizationFailed, AuthorizationRequired
from a2c_smcp.mcp_host.failures import AuthRequired

__all__ = ["hint_for", "refused_call", "refused_read_of"]

_HINTS = {
    4006: "The MCP server {server!r} wants a sign-in. The owner of this computer has to sign in to it.",
    4007: "The MCP server {server!r} refuses the token of this computer for this call: it has expired, or it lacks a "
    "scope. The owner of this computer has to sign in again.",
}


def hint_for(failure: AuthRequired, server: str, bundle_id: str | None = None) -> dict[str, str]:
    """What has to be done, for programs and for people. It names the server if its bundle id is another name."""
    hint = {"action": failure.action, "message": _HINTS[failure.result_code].format(server=server)}
    return hint if bundle_id in (None, server) else {**hint, "server": server}


def refused_call(failure: AuthRequired, server: str, bundle_id: str) -> dict[str, Any]:
    """The result of a tool call, with `isError`. `mcp_server` is the bundle id, as in the published 0.4 generation."""
    hint = hint_for(failure, server, bundle_id)
    return {
        "content": [{"type": "text", "text": hint["message"]}],
        "isError": True,
        "_meta": {"error_code": failure.result_code, "mcp_server": bundle_id, "auth_hint": hint},
    }


def refused_read_of(failure: AuthRequired, server: str) -> AuthorizationRequired:
    """The error for a request that is no tool call."""
    kind = AuthorizationRequired if failure.result_code == AuthorizationRequired.code else AuthorizationFailed
    hint = hint_for(failure, server)
    return kind(hint["message"], mcp_server=server, auth_hint=hint)
