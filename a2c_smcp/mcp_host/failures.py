"""How an MCP server can fail us, as errors of the protocol. A failing tool is not among them: that is a result."""

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
    """The beginning of a text, without half a word at its end: half a secret would not be recognised as one."""
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
    """Starting again would not help: somebody has to provide a credential."""

    title = "MCP server asks for authentication"


class ServerGone(ServerFailure):
    """The connection ended by itself; whether a call in flight has had its effect is unknown."""

    title = "MCP server is gone"


class SessionLost(ServerGone):
    """The server is there, but has forgotten our session: a new one can be opened at once."""

    title = "MCP server has ended the session"


class ServerNotReady(ServerFailure):
    title = "MCP server is not ready"


class RequestRefused(ServerFailure):
    """The server answered a request with an error."""

    title = "MCP server refused the request"


class OversizedAnswer(AnswerTooLarge, ServerFailure):
    """An answer of the server is over a limit and was not read. The connection lives on."""
