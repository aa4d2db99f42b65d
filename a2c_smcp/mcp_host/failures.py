"""The ways in which an MCP server can fail, as errors of the protocol. A tool that fails is a result, and not here."""

from __future__ import annotations

from typing import ClassVar

from a2c_smcp.errors import AnswerTooLarge, BadRequest, SMCPError

__all__ = [
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "RESOURCE_NOT_FOUND",
    "AuthRequired",
    "CommandNotFound",
    "NotSandboxed",
    "OversizedAnswer",
    "RequestRefused",
    "ServerExists",
    "ServerFailure",
    "ServerGone",
    "ServerNotReady",
    "SessionLost",
    "SignInFailed",
    "StartFailed",
    "TokenRefused",
    "in_brief",
]

METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
RESOURCE_NOT_FOUND = -32002  # of revisions before 2026-07-28
"""Codes of MCP, in `details["mcp_code"]` of a `RequestRefused`."""


def in_brief(text: str, most: int) -> str:
    """Return the beginning of a text, without half a word at its end: a mask would not recognise half a secret."""
    if len(text) <= most:
        return text
    whole = text[:most].rpartition(" ")[0]
    return f"{whole} …".lstrip()


class ServerFailure(SMCPError):
    """Any of the failures below."""

    title = "MCP server failed"


class ServerExists(BadRequest):
    title = "There is an MCP server of this name"


class StartFailed(ServerFailure):
    title = "MCP server did not start"


class CommandNotFound(StartFailed):
    """Starting again would not help."""

    title = "Command not found"


class NotSandboxed(StartFailed):
    """Its sandbox cannot be made. Starting again would not help."""

    title = "MCP server cannot be in its sandbox"


class AuthRequired(ServerFailure):
    """Starting again would not help: the owner has to sign in, or the configuration needs a credential.

    `result_code` and `action` are what an agent gets as the result of a call.
    """

    title = "MCP server asks for authentication"
    result_code: ClassVar[int] = 4006
    action: ClassVar[str] = "user_authorization_required"


class TokenRefused(AuthRequired):
    """The token lacks a scope, or it has expired and could not be refreshed."""

    title = "MCP server refuses the token"
    result_code = 4007
    action = "token_refresh_required"


class SignInFailed(ServerFailure):
    """Nobody is signed in to the server. The reason is meant for the owner."""

    code = 401
    title = "Sign-in failed"


class ServerGone(ServerFailure):
    """The connection ended by itself. Whether a call in flight has had its effect is unknown."""

    title = "MCP server is gone"


class SessionLost(ServerGone):
    """The server is running and has forgotten our session: a new one can be opened at once."""

    title = "MCP server has ended the session"


class ServerNotReady(ServerFailure):
    title = "MCP server is not ready"


class RequestRefused(ServerFailure):
    """The server answered a request with an error."""

    title = "MCP server refused the request"


class OversizedAnswer(AnswerTooLarge, ServerFailure):
    """An answer of the server is over a limit and was not read. The connection goes on."""
