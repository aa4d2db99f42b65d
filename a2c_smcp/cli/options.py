"""Options that several commands share, their environment variables and defaults, and the checks of their values.

Clients read `A2C_…` variables, the Server reads `A2C_SERVER_…`: a key of a client never opens a Server by accident.
"""

from __future__ import annotations

import getpass
import inspect
import os
import platform
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Endpoint, is_proxy
from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol.names import MAX_NAME, fault_in
from a2c_smcp.web import is_this_machine

DEFAULT_URL = "http://127.0.0.1:7000"
DEFAULT_OFFICE = "desk"
WITHDRAW_AFTER = 30
WITHDRAW_HELP = "Seconds for which calls of an MCP client that is gone wait for a person; then they are withdrawn."


R = TypeVar("R")


def option(variable: str | None, flag: str, text: str, **more: Any) -> Any:
    """An option, which is also read from the environment variable if one is named."""
    return typer.Option(flag, envvar=variable, help=text, show_envvar=False, **more)


_ALTERNATIVES = (
    (("api_key",), ("key_file",)),
    (("bearer_key",), ("bearer_key_file",), ("no_key",)),
    (("api_key", "keys_file"), ("jwt_secret",), ("jwt_key_file",), ("jwt_jwks_file",)),
)
"""Options that exclude each other: where one of them is typed, variables of the others do not count."""


def takes_options(function: Callable[..., R]) -> Callable[..., R]:
    """Make a Typer command of a function: a parameter that is a dataclass stands for its fields, in their order.

    The function may have a parameter `context`.
    """
    taken = [parameter for parameter in parameters(function) if parameter.name != "context"]
    defaults = {parameter.name: parameter.default for parameter in taken}

    @wraps(function)
    def run(context: typer.Context, **values: Any) -> R:
        kept = values | {name: defaults[name] for name in outweighed(context, values)}
        return from_values(function, {"context": context, **kept})

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    run.__signature__ = inspect.Signature([context, *taken])  # type: ignore[attr-defined]  # what typer reads
    return run


def outweighed(context: typer.Context, values: Iterable[str]) -> Iterator[str]:
    """The options that come from variables, and exclude one that was typed."""
    of_source: dict[str, set[str]] = {"COMMANDLINE": set(), "ENVIRONMENT": set()}
    for name in values:
        if source := context.get_parameter_source(name):
            of_source.setdefault(source.name, set()).add(name)
    for alternatives in _ALTERNATIVES:
        for names in alternatives:
            if not of_source["COMMANDLINE"].isdisjoint(names):
                others = {other for each in alternatives if each != names for other in each}
                yield from others & of_source["ENVIRONMENT"]


def parameters(owner: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """The options and arguments of a function or a dataclass; dataclasses inside are replaced by their fields."""
    for parameter in _declared(owner):
        if _is_group(parameter):
            yield from parameters(parameter.annotation)
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def from_values(owner: Callable[..., R], values: Mapping[str, Any]) -> R:
    """Call a function, or make a dataclass, with the values of its `parameters`."""
    return owner(
        **{
            parameter.name: from_values(parameter.annotation, values)
            if _is_group(parameter)
            else values[parameter.name]
            for parameter in _declared(owner)
        }
    )


def _is_group(parameter: inspect.Parameter) -> bool:
    return hasattr(parameter.annotation, "__dataclass_fields__")


def _declared(owner: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(owner, eval_str=True).parameters.values()


def _checked_proxy(url: str | None) -> str | None:
    """The error does not quote the URL, which may hold a password."""
    if url is not None and not is_proxy(url):
        raise WrongUse("--proxy is not the URL of an HTTP proxy", "Write http://HOST:PORT.")
    return url


Url = Annotated[str, option("A2C_URL", "--url", "The Server.")]
Office = Annotated[str, option("A2C_OFFICE", "--office", "The office to join.")]
AsJSON = Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")]
ApiKey = Annotated[str | None, option("A2C_API_KEY", "--api-key", "Key for the Server.")]
E2EOption = Annotated[
    Sealing,
    option(
        "A2C_E2E",
        "--e2e",
        "Seal calls from agent to computer: with every peer that can (prefer), or only with trusted ones (require).",
    ),
]
LogLevelOption = Annotated[logs.LogLevel, option("A2C_LOG_LEVEL", "--log-level", "How much to log.")]
CA = Annotated[Path | None, option("A2C_CA", "--ca", "Certificates (PEM) that vouch for the Server.")]


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """Certificates and a proxy, for connections to the Server."""

    ca: CA = None
    cert: Annotated[Path | None, option("A2C_CERT", "--cert", "Client certificate (PEM).")] = None
    cert_key: Annotated[Path | None, option("A2C_CERT_KEY", "--cert-key", "Its private key (PEM).")] = None
    proxy: Annotated[
        str | None,
        option("A2C_PROXY", "--proxy", "HTTP proxy; otherwise HTTPS_PROXY is used.", callback=_checked_proxy),
    ] = None

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; `None` for the default. Raises `WrongUse`."""
        if not (self.ca or self.cert):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.cert_key)
        except (OSError, ssl.SSLError) as error:
            what = f"--ca, --cert or --cert-key cannot be used: {error.strerror or error}"
            raise WrongUse(what, "They name files in PEM format, which this user may read.") from None
        return context


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    log_level: LogLevelOption = "warning"
    log_json: Annotated[bool, option("A2C_LOG_JSON", "--log-json", "Log as JSON lines.")] = False

    def set_up(self) -> None:
        logs.queue_stderr()
        logs.set_up(self.log_level, as_json=self.log_json)


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Raises `WrongUse` for --audit-arguments without --audit."""

    audit: Annotated[
        Path | None, option(None, "--audit", "Record who did what in this file, see `a2c-smcp audit`.", metavar="FILE")
    ] = None
    audit_arguments: Annotated[
        bool,
        option(None, "--audit-arguments", "Record the arguments of calls, with secrets masked, not as a keyed hash."),
    ] = False

    def __post_init__(self) -> None:
        if self.audit_arguments and self.audit is None:
            raise WrongUse("--audit-arguments has no meaning without --audit", "Give --audit FILE too.")


def check_folder(path: Path | None, flag: str) -> None:
    """Raises `WrongUse` for a path that exists and is not a folder."""
    if path is not None and path.exists() and not path.is_dir():
        raise WrongUse(f"{flag}: {path} is not a folder", "Name a folder; it is made if it is missing.")


def check_names(*, name: str, office: str) -> None:
    """Raises `WrongUse` for a --name or an --office that a Server would refuse."""
    for flag, text in (("--name", name), ("--office", office)):
        if fault := fault_in(text):
            raise WrongUse(f"{flag}: {fault}", "Choose another.")


def endpoint(url: str, **link: Any) -> Endpoint:
    """The Server at --url. Raises `WrongUse` for what is not the URL of one."""
    try:
        return Endpoint(url=url, **link)
    except ConfigError as error:
        raise WrongUse(error.message, "Correct --url or A2C_URL.") from None


def default_agent_name() -> str:
    """`user@host`. It must stay the same in each run: owners of computers grant permissions to an agent by its name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "agent"
    return f"{user}@{platform.node()}"[:MAX_NAME]


def exposed(url: str, api_key: str | None) -> tuple[str, str] | None:
    """A warning and a remedy if the key goes to another machine unencrypted; otherwise `None`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not api_key or parts.scheme not in ("http", "ws") or is_this_machine(host):
        return None
    return (
        f"The API key goes to {host} unencrypted: others on the network can read it, and all calls",
        "Write https:// in --url (the Server needs --tls-cert, or a proxy with TLS), or use a tunnel such as ssh -L.",
    )


SHORTEST_KEY = 16
"""Characters of an API key. A shorter one can be guessed."""


def read_key(file: Path, flag: str) -> str:
    """The key in a file. Raises `WrongUse`."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise WrongUse(f"{flag}: {file}: {reason}", "Name a file that holds a key and nothing else.") from None
    return checked_key(text, flag)


def checked_key(key: str, flag: str) -> str:
    """The key, if it can be sent. Raises `WrongUse`."""
    is_sendable = key.isascii() and key.isprintable() and " " not in key
    if len(key) < SHORTEST_KEY or not is_sendable:
        from a2c_smcp.server.auth.api_keys import new_key

        raise WrongUse(
            f"{flag}: a key has at least {SHORTEST_KEY} characters, all of them ASCII and none a blank",
            f"Take this new one, for example: {new_key()}",
        )
    return key


_OURS, _OLDER = "A2C_SERVER_", "A2C_"


def server_variable(option: str) -> str:
    """`--keys-file` is A2C_SERVER_KEYS_FILE."""
    return _OURS + option.lstrip("-").replace("-", "_").upper()


def unused_variables(options: Iterable[str]) -> str:
    """A warning about variables that older Servers read and this one does not; empty if none is set.

    If the newer variable is set as well, the older one is meant for clients.
    """
    ours = [server_variable(option) for option in options]
    older = {_OLDER + name.removeprefix(_OURS): name for name in ours if name not in os.environ}
    found = [(name, newer) for name, newer in older.items() if os.environ.get(name)]
    if not found:
        return ""
    names, newer = (", ".join(each) for each in zip(*found, strict=True))
    meant = "if it is meant" if len(found) == 1 else "if they are meant"
    return f"not used by the Server: {names}; its own variables begin with A2C_SERVER_, so write {newer} {meant}"
