"""The ways in which an MCP server can fail, as errors of the protocol. A tool that fails is a result, and not here."""

from __future__ import annotations

from a2c_smcp.errors import AnswerTooLarge, BadRequest, SMCPError

__all__ = [
    "AuthRequired",
    "CommandNotFound",
    "OversizedAnswer",
    "RequestRefused",
    "ServerExists",
    "ServerFailure",
    "ServerGone",
    "ServerNotReady",
    "SessionLost",
    "StartFailed",
    "in_brief",
]


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


class AuthRequired(ServerFailure):
    """Starting again would not help: the configuration needs a credential."""

    title = "MCP server asks for authentication"


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
