"""What can go wrong, as classes. A class is known on the wire by its code and the opening words of its message."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

__all__ = [
    "AmbiguousComputer",
    "AnswerTooLarge",
    "ApprovalRefused",
    "BadRequest",
    "CallCancelled",
    "CallTimeout",
    "ComputerLeft",
    "ComputerNotFound",
    "ConfigError",
    "Forbidden",
    "InvalidWindowURI",
    "NameMismatch",
    "NameTaken",
    "NotAuthenticated",
    "NotAuthorised",
    "NotFound",
    "NotInOffice",
    "NotPrivate",
    "OfficeHasAgent",
    "Outcome",
    "RateLimited",
    "ResultGone",
    "SMCPError",
    "ServerNotFound",
    "TooLarge",
    "ToolForbidden",
    "ToolNotFound",
    "Unavailable",
    "UnsupportedEvent",
    "VersionMismatch",
    "WrongRole",
]


Outcome: TypeAlias = Literal["not_run", "unknown", "done"]
"""Whether the tool of a failed call has run (WIRE §5). Only 410 says `done`."""


class SMCPError(Exception):
    """Anything the protocol answers with an error. By itself: something unforeseen (500).

    For a tool call, `outcome` says whether the tool has run. A class has the one that is usual for it; the place that
    raises it may know better: `CallTimeout("…", outcome="not_run")`. Nothing but "it never began" is `not_run`.
    """

    code: ClassVar[int] = 500
    opening: ClassVar[str] = "Internal error"
    usual_outcome: ClassVar[Outcome] = "unknown"

    def __init__(self, about: str = "", **details: Any) -> None:
        self.message = f"{self.opening}: {about}" if about else self.opening
        self.details = details
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.code} {self.message}"

    @property
    def outcome(self) -> Outcome:
        """What its details say, else what is usual for its class."""
        told = self.details.get("outcome")
        return cast(Outcome, told) if told in _OUTCOMES else self.usual_outcome

    @outcome.setter
    def outcome(self, outcome: Outcome) -> None:
        self.details["outcome"] = outcome

    def to_wire(self, **more_details: Any) -> dict[str, Any]:
        """003's nested error object beside the flat copy that the 0.2+ generation reads (WIRE §3)."""
        error = {"code": self.code, "message": self.message, "details": {**self.details, **more_details}}
        return {"error": error, **error}

    @staticmethod
    def from_wire(answer: object) -> SMCPError | None:
        """The error that an answer carries, as the class raised on the other side; `None` if it carries none."""
        if not isinstance(answer, dict):
            return None
        error = answer.get("error")
        error = error if isinstance(error, dict) else answer
        code, message, details = error.get("code"), error.get("message"), error.get("details")
        if type(code) is not int or not isinstance(message, str):
            return None
        return _revive(code, message, details if isinstance(details, dict) else {})

    @staticmethod
    def from_text(text: object) -> SMCPError:
        """The error in the second ack argument of a refused join or leave: `"<code> <message>"`."""
        code, _, message = str(text).partition(" ")
        if code.isdecimal() and len(code) <= _LONGEST_CODE:
            return _revive(int(code), message, {})
        return _revive(SMCPError.code, str(text), {})


class BadRequest(SMCPError):
    code = 400
    opening = "Bad request"
    usual_outcome: ClassVar[Outcome] = "not_run"


class UnsupportedEvent(BadRequest):
    opening = "Unsupported event"


class AmbiguousComputer(BadRequest):
    opening = "Several of your offices have this computer, say which with office_id"


class InvalidWindowURI(BadRequest, ValueError):
    opening = "Not a window URI"


class ConfigError(BadRequest, ValueError):
    opening = "Bad configuration"


class NotPrivate(ConfigError):
    """A file or folder that others on this machine may change."""

    opening = "Not private"


class VersionMismatch(BadRequest):
    code = 4008
    opening = "Protocol version not supported"


class NotAuthenticated(SMCPError):
    code = 401
    opening = "Not authenticated"
    usual_outcome: ClassVar[Outcome] = "not_run"


class Forbidden(SMCPError):
    code = 403
    opening = "Forbidden"
    usual_outcome: ClassVar[Outcome] = "not_run"


class WrongRole(Forbidden):
    opening = "Wrong role"


class NotInOffice(Forbidden):
    opening = "Not in this office"


class OfficeHasAgent(Forbidden):
    opening = "Agent sid should be equal to office_id"  # 003's wording


class NameTaken(Forbidden):
    opening = "Name is taken in this office"


class NameMismatch(Forbidden):
    opening = "Not your name"


class NotAuthorised(Forbidden):
    opening = "Not authorised"


class ApprovalRefused(Forbidden):
    opening = "Approval refused"


class ToolForbidden(Forbidden):
    opening = "Tool is forbidden"


class NotFound(SMCPError):
    code = 404
    opening = "Not found"
    usual_outcome: ClassVar[Outcome] = "not_run"


class ComputerNotFound(NotFound):
    opening = "No such computer"


class ComputerLeft(NotFound):
    opening = "Computer left while the call was in flight"
    usual_outcome: ClassVar[Outcome] = "unknown"


class ToolNotFound(NotFound):
    opening = "No such tool"


class ServerNotFound(NotFound):
    opening = "No such MCP server"


class CallTimeout(SMCPError):
    code = 408
    opening = "No answer in time"


class ResultGone(SMCPError):
    code = 410
    opening = "This req_id was begun before, its result is not kept"


class TooLarge(SMCPError):
    code = 413
    opening = "Message too large"
    usual_outcome: ClassVar[Outcome] = "not_run"


class AnswerTooLarge(TooLarge):
    opening = "Answer too large"
    usual_outcome: ClassVar[Outcome] = "unknown"


class RateLimited(SMCPError):
    code = 429
    opening = "Too much at once"
    usual_outcome: ClassVar[Outcome] = "not_run"


class CallCancelled(SMCPError):
    code = 499
    opening = "Cancelled by the agent"


class Unavailable(SMCPError):
    code = 503
    opening = "Server unavailable"


def _tree(cls: type[SMCPError]) -> list[type[SMCPError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _tree(child))]


_FAMILY = _tree(SMCPError)
_OUTCOMES = get_args(Outcome)
_LONGEST_CODE = 9  # digits; Python refuses to read an integer of thousands


def _revive(code: int, message: str, details: dict[str, Any]) -> SMCPError:
    """The class with these opening words, else the general one of the code, else a plain error that keeps the code."""
    kin = [cls for cls in _FAMILY if cls.code == code]
    known = next((cls for cls in kin if message.startswith(cls.opening)), None)
    cls = known or (kin[0] if kin else SMCPError)
    error = cls()
    if known is None:
        error.usual_outcome = "unknown"  # type: ignore[misc]  # not our words: a 404 may mean that it left meanwhile
    error.message, error.details = message, details
    error.args = (message,)
    if cls.code != code:
        error.code = code  # type: ignore[misc]  # a code newer than this tree
    return error
