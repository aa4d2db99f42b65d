"""What went wrong, in one sentence, and what to do about it, in another."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from a2c_smcp import errors
from a2c_smcp.errors import SMCPError
from a2c_smcp.link import LineLost

__all__ = ["Failed", "explained", "near", "who_is_there"]


class Failed(Exception):
    """Something that is told to the user, who can do something about it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what.rstrip('.')}. {remedy}")


class _Advice(NamedTuple):
    """Both are filled in with what was tried; `{message}` is the error's own."""

    remedy: str
    what: str = "{message}"


_SCOPE = "The key may be for other names, offices or roles: --name, --office or another --api-key may help."
_LATER = "Try again in a moment."

_ADVICE: dict[type[SMCPError], _Advice] = {
    SMCPError: _Advice("--log-level debug tells more."),
    errors.BadRequest: _Advice("Correct that, and try again."),
    errors.UnsupportedEvent: _Advice("The computer is too old for that: update it."),
    errors.InvalidWindowURI: _Advice("a2c-smcp agent desktop COMPUTER shows the windows with their URIs."),
    errors.VersionMismatch: _Advice("Install an a2c-smcp that speaks the version of this Server."),
    errors.NotAuthenticated: _Advice(
        "Give a valid one with --api-key or A2C_API_KEY.", "{url} does not accept this key, or wants one"
    ),
    errors.Forbidden: _Advice(_SCOPE),
    errors.OfficeHasAgent: _Advice(
        "Wait until it has left, or choose another with --office.",
        "Office {office!r} has an agent already, and holds one at a time",
    ),
    errors.ApprovalRefused: _Advice("Its owner may allow it: auto_apply for this tool, or a2c-smcp computer --yes."),
    errors.ToolForbidden: _Advice("Its owner has put it on forbidden_tools; only its owner can change that."),
    errors.ComputerLeft: _Advice("Whether the tool has run is not known; a2c-smcp agent watch tells who comes back."),
    errors.ServerNotFound: _Advice("a2c-smcp agent config COMPUTER shows its MCP servers."),
    errors.CallTimeout: _Advice(_LATER),
    errors.ResultGone: _Advice("Call it again."),
    errors.TooLarge: _Advice("Ask for less at a time."),
    errors.RateLimited: _Advice(_LATER),
    errors.Unavailable: _Advice("Start a Server with a2c-smcp server, or say with --url where it is."),
    LineLost: _Advice(_LATER),
}
"""By class; a class without a row has that of the class above it."""

_CERTIFICATE = _Advice("--ca names a file of certificates that vouch for it.")
_LISTED = 10


def explained(error: SMCPError, tried: Mapping[str, str]) -> Failed:
    """`tried` is where: `url` and `office`."""
    advice = next(_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE)
    if isinstance(error, errors.Unavailable) and "certificate" in error.message.lower():
        advice = _CERTIFICATE
    return Failed(advice.what.format(message=error.message, **tried), advice.remedy)


def who_is_there(office: str, computers: Sequence[str]) -> str:
    if not computers:
        return f"Nobody is in office {office!r}: a2c-smcp computer puts a machine there."
    return f"Office {office!r} has {_enumerated(computers)}."


def near(name: str, known: Sequence[str]) -> str:
    """What else could have been meant."""
    if close := difflib.get_close_matches(name, known, cutoff=0.5):
        return f"Did you mean {' or '.join(close)}?"
    return f"It has {_enumerated(known)}." if known else "It has no tools at all."


def _enumerated(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
