"""The result of a call to a server that nobody is signed in to (WIRE §9): says who has to do what, and no more."""

from __future__ import annotations

from typing import Any

from a2c_smcp.mcp_host.failures import AuthRequired

__all__ = ["refused_call"]

_HINTS = {
    4006: "The MCP server {server!r} wants a sign-in. The owner of this computer has to sign in to it.",
    4007: "The MCP server {server!r} refuses the token of this computer for this call: it has expired, or it lacks a "
    "scope. The owner of this computer has to sign in again.",
}


def refused_call(failure: AuthRequired, server: str) -> dict[str, Any]:
    """A result with `isError`. What the server said is for the owner, in the state of the server and in the log."""
    message = _HINTS[failure.result_code].format(server=server)
    hint = {"action": failure.action, "message": message}
    return {
        "content": [{"type": "text", "text": message}],
        "isError": True,
        "_meta": {"error_code": failure.result_code, "mcp_server": server, "auth_hint": hint},
    }
