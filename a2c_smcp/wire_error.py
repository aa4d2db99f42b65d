"""An error of the protocol on the wire: its shape, and the way back to a class.

The message begins with the title of its class, so that the receiver can raise the same class again. The classes are in
`errors.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

__all__ = ["Outcome", "SMCPError"]

Outcome: TypeAlias = Literal["not_run", "unknown", "done"]
"""Whether the tool of a failed call has run (WIRE §5). Only 410 says `done`."""


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
        """Whether the tool has run: what the details say, or the default of the class."""
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


def _tree(cls: type[SMCPError]) -> list[type[SMCPError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _tree(child))]


@cache
def _classes() -> list[type[SMCPError]]:
    """Those of the protocol; not those that parts of this package, or users, derive from them."""
    return [cls for cls in _tree(SMCPError) if cls.__module__ in ("a2c_smcp.errors", __name__)]


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
