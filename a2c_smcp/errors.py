"""The errors of the protocol, as classes.

On the wire an error is a code, a message and details. The message begins with the title of its class, so that the
receiver can raise the same class again (`SMCPError.from_wire`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from a2c_smcp.wire_error import Outcome, SMCPError

__all__ = [
    "AgentNotFound",
    "AmbiguousComputer",
    "AnswerTooLarge",
    "ApprovalRefused",
    "AuthorizationFailed",
    "AuthorizationRequired",
    "BadRequest",
    "BlobNotAccessible",
    "BlobWriteFailed",
    "CallCancelled",
    "CallTimeout",
    "CapabilityNotSupported",
    "ComputerLeft",
    "ComputerNotFound",
    "ConfigError",
    "DeviceMismatch",
    "Forbidden",
    "InvalidSkillName",
    "InvalidWindowURI",
    "NameMismatch",
    "NameTaken",
    "NotAuthenticated",
    "NotAuthorised",
    "NotCarried",
    "NotFound",
    "NotInOffice",
    "NotPrivate",
    "OfficeHasAgent",
    "Outcome",
    "PromptNotFound",
    "QuestionEnded",
    "QuestionNotFound",
    "RateLimited",
    "ResourceNotFound",
    "ResultGone",
    "SMCPError",
    "ScannerRefused",
    "SealedToUnknownKey",
    "SealingRequired",
    "ServerNotFound",
    "ServerNotRegistered",
    "SkillFileNotAccessible",
    "SkillNotFound",
    "TooLarge",
    "ToolForbidden",
    "ToolNotFound",
    "Unavailable",
    "UnsupportedEvent",
    "VersionMismatch",
    "WrongRole",
]


class BadRequest(SMCPError):
    code = 400
    title = "Bad request"
    default_outcome: ClassVar[Outcome] = "not_run"


class UnsupportedEvent(BadRequest):
    title = "Unsupported event"


class NotCarried(UnsupportedEvent):
    """The Server answered with nothing: it is of an older make, and does not pass this event on (WIRE §9)."""

    title = "This Server does not carry the event"


class AmbiguousComputer(BadRequest):
    title = "Several of your offices have this computer, say which with office_id"


class InvalidWindowURI(BadRequest, ValueError):
    title = "Not a window URI"


class ConfigError(BadRequest, ValueError):
    title = "Bad configuration"


class NotPrivate(ConfigError):
    """A file or folder that others on this machine may change."""

    title = "Not private"


class VersionMismatch(BadRequest):
    code = 4008
    title = "Protocol version not supported"


class NotAuthenticated(SMCPError):
    """`details.device`: the key is bound to a device that was not proved. `details.now`: the Server's time, if the
    clocks differ too much for a proof."""

    code = 401
    title = "Not authenticated"
    default_outcome: ClassVar[Outcome] = "not_run"
    lifted = ("device", "now")


class Forbidden(SMCPError):
    code = 403
    title = "Forbidden"
    default_outcome: ClassVar[Outcome] = "not_run"


class WrongRole(Forbidden):
    title = "Wrong role"


class NotInOffice(Forbidden):
    title = "Not in this office"


class OfficeHasAgent(Forbidden):
    title = "Agent sid should be equal to office_id"  # 003's wording


class NameTaken(Forbidden):
    title = "Name is taken in this office"


class NameMismatch(Forbidden):
    title = "Not your name"


class NotAuthorised(Forbidden):
    title = "Not authorised"


class ApprovalRefused(Forbidden):
    title = "Approval refused"


class ScannerRefused(Forbidden):
    title = "Refused by a scanner"


class ToolForbidden(Forbidden):
    title = "Tool is forbidden"


class DeviceMismatch(Forbidden):
    """What a peer sent does not come, unchanged, from the device that it is known by. Nothing of it was used."""

    title = "Not the known device"


class NotFound(SMCPError):
    code = 404
    title = "Not found"
    default_outcome: ClassVar[Outcome] = "not_run"


class ComputerNotFound(NotFound):
    title = "No such computer"


class AgentNotFound(NotFound):
    title = "No such agent"


class ComputerLeft(NotFound):
    title = "Computer left while the call was in flight"
    default_outcome: ClassVar[Outcome] = "unknown"


class ToolNotFound(NotFound):
    title = "No such tool"


class ServerNotFound(NotFound):
    title = "No such MCP server"


class ResourceNotFound(NotFound):
    title = "No such resource"


class PromptNotFound(NotFound):
    title = "No such prompt"


class QuestionNotFound(NotFound):
    title = "No such question"


class ServerNotRegistered(NotFound):
    """As `ServerNotFound`, in answers to events of the published 0.4 generation."""

    code = 4014
    title = "MCP Server not registered"
    lifted = ("mcp_server",)


class SkillNotFound(NotFound):
    code = 4014
    title = "Skill not found"


class CapabilityNotSupported(SMCPError):
    """The MCP server does not offer this. `details` has `mcp_server` and `capability`."""

    code = 4015
    title = "MCP capability not supported"
    default_outcome: ClassVar[Outcome] = "not_run"
    lifted = ("mcp_server", "capability")


class AuthorizationRequired(SMCPError):
    """The MCP server wants a sign-in. `details` has `mcp_server` and `auth_hint`. For tool calls this is a result."""

    code = 4006
    title = "MCP server wants a sign-in"
    default_outcome: ClassVar[Outcome] = "not_run"
    lifted = ("mcp_server",)


class AuthorizationFailed(AuthorizationRequired):
    """The token of the computer has expired, or lacks a scope."""

    code = 4007
    title = "MCP server refuses the token of the computer"


class InvalidSkillName(BadRequest):
    code = 4016
    title = "Invalid skill name"


class _Reasoned(Exception):
    """Says why in a word for programs, too: `BlobNotAccessible("…", reason="gone")`."""

    details: dict[str, Any]

    def __init__(self, text: str = "", *, reason: str = "", **details: Any) -> None:
        super().__init__(text, **details)  # the class beside this one takes them
        if reason:
            self.details["reason"] = reason


class SkillFileNotAccessible(_Reasoned, NotFound):
    """`details.reason` is traversal, forbidden, not_found or too_large."""

    code = 4017
    title = "Skill resource not accessible"


class BlobNotAccessible(_Reasoned, NotFound):
    """`details.reason` is invalid_handle, forbidden, gone or range."""

    code = 4018
    title = "Blob not accessible"


class BlobWriteFailed(_Reasoned, SMCPError):
    """`details.reason` is one of those of the published 0.4 generation: busy, too_large, integrity and others."""

    code = 4019
    title = "Blob write failed"


class CallTimeout(SMCPError):
    code = 408
    title = "No answer in time"


class ResultGone(SMCPError):
    code = 410
    title = "This req_id was begun before, its result is not kept"


class QuestionEnded(SMCPError):
    """The question was answered otherwise or withdrawn, or the call whose state it is has ended."""

    code = 410
    title = "This question has ended"


class TooLarge(SMCPError):
    code = 413
    title = "Message too large"
    default_outcome: ClassVar[Outcome] = "not_run"


class AnswerTooLarge(TooLarge):
    title = "Answer too large"
    default_outcome: ClassVar[Outcome] = "unknown"


class SealedToUnknownKey(SMCPError):
    """The computer has changed its sealing key. `details.device` has the new one, signed."""

    code = 421
    title = "Sealed to a key that is not held"
    default_outcome: ClassVar[Outcome] = "not_run"


class SealingRequired(SMCPError):
    code = 426
    title = "Sealing is required"
    default_outcome: ClassVar[Outcome] = "not_run"


class RateLimited(SMCPError):
    code = 429
    title = "Too much at once"
    default_outcome: ClassVar[Outcome] = "not_run"


class CallCancelled(SMCPError):
    code = 499
    title = "Cancelled by the agent"


class Unavailable(SMCPError):
    code = 503
    title = "Server unavailable"
