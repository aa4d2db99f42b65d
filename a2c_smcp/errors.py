"""The errors of the protocol, as classes.

On the wire an error is a code, a message and details. The message begins with the title of its class, so that the
receiver can raise the same class again (`SMCPError.from_wire`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, update_wrapper
from types import FunctionType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast, get_args, get_overloads, overload

Outcome: TypeAlias = Literal["not_run", "unknown", "done"]
"""The state of the tool of a failed call: has it run (WIRE §5)? Only 410 says `done`."""


class SMCPError(Exception):
    """An error that the protocol can answer with. This class itself stands for an unexpected failure (500).

    `title` says what kind of error it is, the same for all of its class; `subject` what it is about, such as
    `server 'files'`; `reason` what is wrong with that. `message` joins them: `title: subject: reason`. `details` are
    sent along as they are.

    For a tool call, `outcome` says whether the tool has run. Each class has a default; where more is known, pass it:
    `CallTimeout("…", outcome="not_run")`. `not_run` means that the tool has certainly not begun.
    """

    code: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    default_outcome: ClassVar[Outcome] = "unknown"
    lifted: ClassVar[tuple[str, ...]] = ()
    """The details that stand beside `code` as well: there the published 0.4 generation and refused clients look."""

    def __init__(self, reason: str = "", *, subject: str = "", **details: Any) -> None:
        self.subject, self.reason = subject, reason
        self.message = ": ".join(filter(None, (self.title, subject, reason)))
        self.details = details
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.code} {self.message}"

    @property
    def about(self) -> str:
        """The message without the title, or the title if the message has nothing else."""
        return ": ".join(filter(None, (self.subject, self.reason))) or self.title

    @property
    def outcome(self) -> Outcome:
        """The state of the tool: as the details say, or the default of the class."""
        told = self.details.get("outcome")
        return cast(Outcome, told) if told in _OUTCOMES else self.default_outcome

    @outcome.setter
    def outcome(self, outcome: Outcome) -> None:
        self.details["outcome"] = outcome

    def to_wire(self, **more_details: Any) -> dict[str, Any]:
        """The error as an ack: 003's nested object, and a flat copy that the 0.2+ generation reads (WIRE §3)."""
        error = {"code": self.code, "message": self.message, "details": {**self.details, **more_details}}
        return {"error": error, **error, **self._lifted_details()}

    def to_refusal(self) -> dict[str, Any]:
        """The `data` of a refused CONNECT (WIRE §3)."""
        return {"code": self.code, "message": self.message, **self._lifted_details()}

    def _lifted_details(self) -> dict[str, Any]:
        return {field: self.details[field] for field in self.lifted if field in self.details}

    @staticmethod
    def from_wire(answer: object) -> SMCPError | None:
        """The error in an ack, of the class that the other side raised; `None` if the ack is no error."""
        if not isinstance(answer, dict):
            return None
        error = answer.get("error")
        error = error if isinstance(error, dict) else answer
        code, message, details = error.get("code"), error.get("message"), error.get("details")
        if type(code) is not int or not isinstance(message, str):
            return None
        lifted = {field: answer[field] for field in _lifted() if field in answer}
        return _revive(code, message, lifted | details if isinstance(details, dict) else lifted)

    @staticmethod
    def from_text(text: object) -> SMCPError:
        """The error in the second ack argument of a refused join or leave: `"<code> <message>"`."""
        code, _, message = str(text).partition(" ")
        if code.isdecimal() and len(code) <= _LONGEST_CODE:
            return _revive(int(code), message, {})
        return _revive(SMCPError.code, str(text), {})


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
    """A message does not come, unchanged, from the device that its sender is known by. Nothing of it was used."""

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
    """An error whose reason, or that of a person, is in its details too: `BlobNotAccessible("…", reason="gone")`."""

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


class Frozen(_Reasoned, SMCPError):
    """A person lets no request through. `details.by` is `owner` or `operator`, `details.reason` what that one wrote."""

    code = 423
    title = "Frozen"
    default_outcome: ClassVar[Outcome] = "not_run"


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


class CallFrozen(_Reasoned, CallCancelled):
    """A person has frozen the computer, office or Server while the call ran. Its details are those of `Frozen`."""

    title = "Cancelled by a freeze"


class Unavailable(SMCPError):
    code = 503
    title = "Server unavailable"


def kind_of(error: type[BaseException]) -> str:
    """An error of Python, or of a library, in plain words: `connect error`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", error.__name__).lower()


# From an error on the wire back to its class.


def _tree(cls: type[SMCPError]) -> list[type[SMCPError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _tree(child))]


@cache
def _classes() -> list[type[SMCPError]]:
    """Return the classes of the protocol, without those that this package or users derive from them."""
    return [cls for cls in _tree(SMCPError) if cls.__module__ == __name__]


@cache
def _lifted() -> set[str]:
    return {field for cls in _classes() for field in cls.lifted}


_OUTCOMES = get_args(Outcome)
_LONGEST_CODE = 9  # digits; Python refuses to read an integer of thousands


def _revive(code: int, message: str, details: dict[str, Any]) -> SMCPError:
    """The class with this title, or the general one of the code, or `SMCPError` with a code of its own."""
    same_code = [cls for cls in _classes() if cls.code == code]
    known = next((cls for cls in same_code if message.startswith(cls.title)), None)
    cls = known or (same_code[0] if same_code else SMCPError)
    error = cls()
    if known is None:
        error.default_outcome = "unknown"  # type: ignore[misc]  # another make: its 404 may mean that a computer left
    error.message, error.details = message, details
    error.reason = message[len(known.title) :].removeprefix(": ") if known else message
    error.args = (message,)
    if cls.code != code:
        error.code = code  # type: ignore[misc]  # a code newer than this tree
    return error


# Python's own errors about a call ("AgentBase.__init__() missing …") name the class in which a method is written.

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def renamed(method: F, owner: str) -> F:
    """A copy of a method that errors show as one of the class `owner`."""
    assert isinstance(method, FunctionType)
    copy = FunctionType(
        *(getattr(method, f"__{each}__") for each in ("code", "globals", "name", "defaults", "closure"))
    )
    copy.__kwdefaults__ = method.__kwdefaults__
    update_wrapper(copy, method).__qualname__ = f"{owner}.{method.__name__}"
    del copy.__dict__["__wrapped__"]
    return cast(F, copy)


def under_own_name(*bases: type) -> Callable[[C], C]:
    """Give a public class copies of the methods of its bases, which errors show under its own name."""

    def give(cls: C) -> C:
        for name, member in [item for base in bases for item in vars(base).items()]:
            if isinstance(member, FunctionType) and getattr(cls, name) is member:
                setattr(cls, name, renamed(member, cls.__name__))
                for each in get_overloads(member):
                    overload(renamed(each, cls.__name__))
        return cls

    return give
