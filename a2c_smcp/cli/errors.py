"""Errors that a user sees: one sentence on what went wrong, and one on what to do about it.

Commands raise `Failed` (exit code 1) or `WrongUse` (exit code 2). The tables here add the remedy to errors of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import typer

from a2c_smcp import errors
from a2c_smcp.audit.file import AuditFileUnusable
from a2c_smcp.connection import ConnectionLost, LinkFault, Unreachable
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.failures import Fault, SignInCause, SignInFailed
from a2c_smcp.protocol.names import enumerated, name_hint
from a2c_smcp.protocol.results import CallToolResult


def sentence(text: str) -> str:
    """The text with exactly one mark at its end."""
    text = text.rstrip(" \n\t.,;:")
    return text if text.endswith(("?", "!", "…")) else f"{text}."


class Failed(Exception):
    """The command failed, and the user can do something about it."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what.rstrip("."), remedy
        is_long = "\n" in what.strip()  # its last line may be the text of others
        super().__init__(f"{what.rstrip()}\n{remedy}" if is_long else f"{sentence(what)} {remedy}")


UsageError: Any = typer.BadParameter.__mro__[1]
"""Click's, which Typer keeps in another place from time to time."""


class WrongUse(typer.BadParameter):
    """An option, or a file that an option names, is wrong; nothing has been done yet."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = sentence(what), remedy
        super().__init__(f"{self.what} {remedy}")


class _Advice(NamedTuple):
    """A message and a remedy. `{message}`, `{about}` (without its title), `{url}` and `{office}` are filled in."""

    remedy: str
    what: str = "{message}"


_SCOPE = "The key may be for other names, offices or roles: --name, --office or another --api-key may help."
_LATER = "Try again in a moment."
UNFORESEEN = "--log-level debug tells more."

_ADVICE: dict[type[SMCPError], _Advice] = {
    SMCPError: _Advice(UNFORESEEN),
    errors.BadRequest: _Advice("Correct that, and try again."),
    errors.ConfigError: _Advice("Correct that file, or name another; `a2c-smcp doctor` checks all of it."),
    AuditFileUnusable: _Advice("Correct that, or give another file with --audit."),
    errors.NotPrivate: _Advice("Do so, then try again."),
    errors.UnsupportedEvent: _Advice("The computer is too old for that: update it."),
    errors.NotCarried: _Advice(
        "Update that Server; a2c-smcp server starts one that does.",
        "The Server at {url} is older than this request, and does not pass it on to computers",
    ),
    errors.InvalidWindowURI: _Advice("a2c-smcp agent desktop COMPUTER shows the windows with their URIs."),
    errors.VersionMismatch: _Advice("Install an a2c-smcp that speaks the version of this Server."),
    errors.NotAuthenticated: _Advice(
        "Give a valid one with --api-key or A2C_API_KEY; a2c-smcp key makes one for the Server's keys file.",
        "{url} does not accept this key, or wants one",
    ),
    errors.Forbidden: _Advice(_SCOPE),
    errors.DeviceMismatch: _Advice("Do that only if you know why; `a2c-smcp device` shows who is known."),
    errors.SealingRequired: _Advice("`a2c-smcp agent … --e2e prefer` seals calls; `a2c-smcp device` shows known keys."),
    errors.OfficeHasAgent: _Advice(
        "Wait until it has left (an MCP client leaves a minute after its last request), or give another --office.",
        "An office holds one agent at a time: {about}",
    ),
    errors.NameTaken: _Advice("Choose another with --name, or stop the one that has it."),
    errors.ApprovalRefused: _Advice("Its owner may allow it; call it again then."),
    errors.ScannerRefused: _Advice("Its owner decides what scanners let pass; the log of the computer tells more."),
    errors.Frozen: _Advice("Only a person ends that: the operator of the Server, or the owner of the computer."),
    errors.CallFrozen: _Advice("Only a person ends that; what the tool has done until then stays done."),
    errors.ToolForbidden: _Advice(
        "Its owner has forbidden it, by forbidden_tools or a policy; only its owner can change that."
    ),
    errors.NotFound: _Advice("Correct --url, which names the Server, and its path where it has one."),
    errors.ComputerNotFound: _Advice("a2c-smcp agent room shows who is there."),
    errors.ToolNotFound: _Advice("a2c-smcp agent tools shows what there is."),
    errors.ComputerLeft: _Advice("Whether the tool has run is not known; a2c-smcp agent watch shows who comes back."),
    errors.ServerNotFound: _Advice("a2c-smcp agent config COMPUTER shows its MCP servers."),
    errors.ServerNotRegistered: _Advice("a2c-smcp agent config COMPUTER shows its MCP servers."),
    errors.AuthorizationRequired: _Advice("Its owner signs in on that computer, with a2c-smcp login SERVER."),
    errors.AuthorizationFailed: _Advice("Its owner signs in on that computer, with a2c-smcp login SERVER --again."),
    errors.ResourceNotFound: _Advice("a2c-smcp agent resources COMPUTER shows what there is."),
    errors.PromptNotFound: _Advice("a2c-smcp agent prompts COMPUTER shows what there is."),
    errors.CapabilityNotSupported: _Advice("a2c-smcp agent servers COMPUTER shows what its MCP servers offer."),
    errors.SkillNotFound: _Advice("a2c-smcp agent skills COMPUTER shows its skills."),
    errors.InvalidSkillName: _Advice("a2c-smcp agent skills COMPUTER shows its skills."),
    errors.SkillFileNotAccessible: _Advice("Its SKILL.md says which files it has."),
    errors.BlobNotAccessible: _Advice(
        "Ask again for what it was a part of: contents are kept for a quarter of an hour."
    ),
    errors.BlobWriteFailed: _Advice(_LATER),
    errors.CallTimeout: _Advice(_LATER),
    errors.ResultGone: _Advice("See what the tool has done before you call it again."),
    errors.TooLarge: _Advice("Ask for less at a time."),
    errors.RateLimited: _Advice(_LATER),
    errors.Unavailable: _Advice("Start a Server with a2c-smcp server, or say with --url where it is."),
    ConnectionLost: _Advice(_LATER),
}
"""By class; a class without a row has that of its base class."""

_UNREACHABLE: dict[LinkFault, _Advice] = {
    "certificate name": _Advice(
        "Write the name that it is for in --url, or give the Server a certificate for this one.",
        "The certificate of {url} is for another name",
    ),
    "certificate": _Advice(
        "If you trust it, give its certificate, or that of its CA, with --ca.",
        "{url} shows a certificate that this machine does not trust",
    ),
    "no TLS": _Advice("Write http:// in --url, or start the Server with --tls-cert.", "{url} does not speak TLS"),
    "TLS": _Advice("Write https:// in --url.", "{url} speaks https"),
    "not SMCP": _Advice(
        "Correct --url, also the path, if the Server is part of another application.",
        "{url} is there, but no A2C-SMCP Server",
    ),
}
"""By the fault of `Unreachable`."""

_BOUND_KEY = _Advice(
    "`a2c-smcp device` shows this device; the operator of the Server binds a key to it with `a2c-smcp key --device`.",
    "{url} does not accept this key from here: {about}",
)

_BLOB_WRITE = {
    "forbidden": _Advice(
        "Its owner has to start it with --landing DIR, a folder that it can write into, and without --read-only or "
        "read_only in its policy."
    ),
    "busy": _Advice("It takes only a few files at a time: try again in a moment."),
    "too_large": _Advice("Its owner decides how large a file may be; send a smaller one."),
    "io_error": _Advice("Its disk may be full; its log tells more."),
    "integrity": _Advice("The file may have changed while it was sent: try again."),
}
"""By the reason of `BlobWriteFailed`."""

_NOT_TRUSTED = (
    "This machine does not trust the certificate of that MCP server, or of one that it calls: put the file of "
    "its CA into SSL_CERT_FILE, or NODE_EXTRA_CA_CERTS for Node, and start this program again."
)
_OF_MCP_SERVERS: dict[Fault, str] = {
    "certificate name": "Write the name that its certificate is for in its url.",
    "certificate": _NOT_TRUSTED,
    "no TLS": "It does not speak TLS: write http:// in its url.",
    "command": "Install it, or write its whole path in the configuration.",
    "credential": "Give it a credential, such as ${input:token}, under headers or env.",
}
"""By the fault of an MCP server that is not ready."""

_AGAIN = "It is tried again; correct its configuration if that does not help."

_UNSAID = {"url": "The Server", "office": "of this name"}


def explained(error: SMCPError, tried: Mapping[str, str] = _UNSAID) -> Failed:
    """The error with its remedy. `tried` has the `url` and the `office` that were used."""
    advice = next(_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE)
    if isinstance(error, errors.BlobWriteFailed):
        advice = _BLOB_WRITE.get(error.details.get("reason", ""), advice)
    if isinstance(error, errors.NotAuthenticated) and error.details.keys() & {"device", "now"}:
        advice = _BOUND_KEY
    if isinstance(error, Unreachable):
        advice = _UNREACHABLE.get(error.fault, advice)
    return Failed(advice.what.format(message=error.message, about=error.about, **tried), advice.remedy)


def file_error(error: SMCPError) -> WrongUse:
    """The error of a file that an option names."""
    return WrongUse(error.message, explained(error).remedy)


def server_remedy(error: SMCPError | None) -> str:
    """The remedy while a connection to a Server is tried again; empty if its message says all."""
    if type(error) is errors.Unavailable:
        return "The Server is there, and its log says why."
    return explained(error).remedy if isinstance(error, Unreachable | errors.Forbidden) else ""


def mcp_server_remedy(fault: Fault) -> str:
    """The remedy for an MCP server while it is supervised; empty if its message says all."""
    return _AGAIN if fault in ("start", "gone") else _OF_MCP_SERVERS.get(fault, "")


def mcp_server_failure(message: str, fault: Fault) -> Failed:
    """An MCP server that is not ready, for a command that does not try again."""
    return Failed(
        message, _OF_MCP_SERVERS.get(fault, "Correct its configuration, or start that server; then try again.")
    )


def with_remedy(message: str, remedy: str) -> str:
    return f"{sentence(message)} {remedy}" if remedy else message


_LOGIN = "a2c-smcp login"
_OF_RESULTS = {
    4006: (
        "Nobody is signed in to {server} on {computer}. Its owner signs in there, with `a2c-smcp login {server}` or"
        " with `login {server}` at its prompt. Then call again."
    ),
    4007: (
        "{computer} is signed in to {server}, but that has expired, or lacks the permission for this. Its owner signs"
        " in again there, with `a2c-smcp login {server} --again`. Then call again."
    ),
}
_LACKS_CAPABILITY = -32021
_OF_MCP_ERRORS = {
    -32602: "{computer} passed the call on, and the MCP server does not take these arguments: "
    "a2c-smcp agent tools {computer} --json shows what it takes.",
    -32601: "The MCP server does not know what it was asked for: its list of tools may have changed.",
    _LACKS_CAPABILITY: "The tool asks its user something, and nobody could answer: call it on a terminal, or have the "
    "owner of {computer} at its prompt.",
    -32042: "The MCP server wants its user to open a page first: the owner of {computer} can do that.",
}
_OTHER_MCP_ERROR = "The MCP server answered with the error {code}; --json shows all of it."


def result_remedy(result: CallToolResult, computer: str) -> str:
    """The remedy for a result that is an error; empty if only the tool itself can say."""
    server = (result.auth_hint or {}).get("server") or result.mcp_server or "SERVER"
    if result.error_code in _OF_RESULTS:
        return _OF_RESULTS[result.error_code].format(server=server, computer=computer)
    if result.mcp_error is None:
        return ""
    code = result.mcp_error.get("code")
    words = _OF_MCP_ERRORS.get(code, _OTHER_MCP_ERROR) if isinstance(code, int) else _OTHER_MCP_ERROR
    if code == _LACKS_CAPABILITY and "elicitation" not in str(result.mcp_error.get("data")):
        words = "The tool needs more of its client than `agent call` can do; --json shows what."
    return words.format(code=code, computer=computer)


def at_the_prompt(reason: str) -> str:
    """The reason for a state of an MCP server, with the command that is shorter at the prompt of its computer."""
    return reason.replace(f"sign in with: {_LOGIN} ", "to sign in, type: login ")


def server_names_hint(name: str, known: Sequence[str]) -> str:
    """Similar names of MCP servers, or all there are."""
    return name_hint(name, known, "MCP servers", "There are")


_OF_SIGN_IN: dict[SignInCause, str] = {
    "refused": "Sign in again, and allow it there.",
    "timeout": "Try again; --no-browser prints the page, to be opened on any machine.",
    "no browser": "Try again with --no-browser, which prints the page, to be opened on any machine.",
    "given up": "Nothing was changed.",
    "own credential": "It needs no sign-in; remove that credential from its entry if it should have one.",
    "port": "Stop what uses that port, or give another as redirect_port under auth.",
    "private key": "Correct private_key under auth in its entry.",
    "issuer": "Set issuer under auth in its entry, if you trust that authorization server.",
    "registration": "Its provider registers no clients: ask it for a client_id, and put that under auth.",
}
"""By the cause of a sign-in that failed."""


def sign_in_failure(error: SignInFailed) -> Failed:
    """A sign-in that failed, with what to do about it."""
    otherwise = "Correct that, or ask the people who run that server; then try again."
    return Failed(error.message, _OF_SIGN_IN.get(error.cause, otherwise))


def members_hint(office: str, computers: Sequence[str]) -> str:
    if not computers:
        return f"There is no computer in office {office!r}: a2c-smcp computer adds this machine."
    return f"Office {office!r} has {enumerated(computers)}."
