"""Failures of an MCP server, as errors of the protocol. The failure of a tool is a result, not one of them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from a2c_smcp.errors import AnswerTooLarge, BadRequest, SMCPError

METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
RESOURCE_NOT_FOUND = -32002  # of revisions before 2026-07-28
"""Codes of MCP, in `details["mcp_code"]` of a `RequestRefused`."""


def if_short(text: str, most: int = 4000) -> str:
    """Return a text that is not masked yet, or its length if it is too long: no mask recognises half a secret."""
    return text if len(text) <= most else f"[{len(text)} characters, left out]"


Fault = Literal["", "start", "gone", "command", "credential", "certificate", "certificate name", "no TLS"]
"""The kind of a failure, by which an owner gets a remedy; empty if its message says all."""

_TLS_FAULTS: dict[str, Fault] = {
    "mismatch": "certificate name",
    "certificate": "certificate",
    **dict.fromkeys(("SELF_SIGNED_CERT", "ISSUER_CERT", "UNABLE_TO_VERIFY", "CERT_UNTRUSTED"), "certificate"),
    "ConnectError [SSL": "no TLS",
}
"""Parts of the messages of OpenSSL and Node, which come as text, also from the stderr of a server."""


class ServerFailure(SMCPError):
    """Any of the failures below."""

    title = "MCP server failed"

    @property
    def fault(self) -> Fault:
        return next(
            (fault for words, fault in _TLS_FAULTS.items() if words in self.message), _FAULTS.get(type(self), "")
        )


class ServerExists(BadRequest):
    title = "There is an MCP server of this name"


class StartFailed(ServerFailure):
    title = "MCP server did not start"


class CommandNotFound(StartFailed):
    """Starting again would not help."""

    title = "Command not found"


class CommandUnusable(StartFailed):
    """Starting again would not help."""

    title = "Command cannot be run"


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


class SignInNeeded(AuthRequired):
    """Its owner can sign in; the reason says how."""


class TokenRefused(AuthRequired):
    """The token lacks a scope, or it has expired and could not be refreshed."""

    title = "MCP server refuses the token"
    result_code = 4007
    action = "token_refresh_required"


SignInCause = Literal[
    "",
    "refused",
    "timeout",
    "no browser",
    "given up",
    "own credential",
    "port",
    "private key",
    "issuer",
    "registration",
]


class SignInFailed(ServerFailure):
    """There is no usable sign-in at the server. The reason is meant for the owner; `cause` decides the remedy."""

    code = 401
    title = "Sign-in failed"

    def __init__(self, reason: str = "", *, cause: SignInCause = "", **details: Any) -> None:
        super().__init__(reason, **details)
        self.cause = cause


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


_FAULTS: dict[type[ServerFailure], Fault] = {
    StartFailed: "start",
    CommandNotFound: "command",
    AuthRequired: "credential",
    ServerGone: "gone",
}
