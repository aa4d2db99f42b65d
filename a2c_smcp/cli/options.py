"""Options that several commands share, their environment variables and defaults, and the checks of their values.

Clients read `A2C_…` variables, the Server reads `A2C_SERVER_…`: a key of a client never opens a Server by accident.
"""

from __future__ import annotations

import getpass
import os
import platform
import ssl
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.endpoint import Endpoint, is_proxy
from a2c_smcp.errors import ConfigError
from a2c_smcp.http.loopback import is_this_machine
from a2c_smcp.protocol.names import MAX_NAME, fault_in

__all__ = [
    "CA",
    "DEFAULT_OFFICE",
    "DEFAULT_URL",
    "E2E",
    "SHORTEST_KEY",
    "ApiKey",
    "Cert",
    "CertKey",
    "E2EOption",
    "LogJSON",
    "LogLevelOption",
    "Office",
    "Proxy",
    "Url",
    "audit_settings",
    "check_names",
    "checked_folder",
    "default_agent_name",
    "endpoint",
    "exposed",
    "option",
    "server_variable",
    "tls",
    "unused_variables",
]

DEFAULT_URL = "http://127.0.0.1:7000"
DEFAULT_OFFICE = "desk"


def option(variable: str | None, flag: str, text: str, **more: Any) -> Any:
    """An option, which is also read from the environment variable if one is named."""
    return typer.Option(flag, envvar=variable, help=text, show_envvar=False, **more)


class E2E(StrEnum):
    """Whether requests are sealed end to end, so that the Server cannot read them."""

    off = "off"
    prefer = "prefer"
    require = "require"


def _checked_proxy(url: str | None) -> str | None:
    """The error does not quote the URL, which may hold a password."""
    if url is not None and not is_proxy(url):
        raise WrongUse("--proxy is not the URL of an HTTP proxy", "Write http://HOST:PORT.")
    return url


Url = Annotated[str, option("A2C_URL", "--url", "The Server.")]
Office = Annotated[str, option("A2C_OFFICE", "--office", "The office to join.")]
ApiKey = Annotated[str | None, option("A2C_API_KEY", "--api-key", "Key for the Server.")]
CA = Annotated[Path | None, option("A2C_CA", "--ca", "Certificates (PEM) that vouch for the Server.")]
Cert = Annotated[Path | None, option("A2C_CERT", "--cert", "Client certificate (PEM).")]
CertKey = Annotated[Path | None, option("A2C_CERT_KEY", "--cert-key", "Its private key (PEM).")]
Proxy = Annotated[
    str | None,
    option("A2C_PROXY", "--proxy", "HTTP proxy; otherwise HTTPS_PROXY is used.", callback=_checked_proxy),
]
E2EOption = Annotated[
    E2E,
    option(
        "A2C_E2E",
        "--e2e",
        "Seal calls from agent to computer: with every peer that can (prefer), or only with trusted ones (require).",
    ),
]
LogLevelOption = Annotated[logs.LogLevel, option("A2C_LOG_LEVEL", "--log-level", "How much to log.")]


Audit = Annotated[
    Path | None, option(None, "--audit", "Record who did what in this file, see `a2c-smcp audit`.", metavar="FILE")
]
AuditArguments = Annotated[
    bool, option(None, "--audit-arguments", "Record the arguments of calls, with secrets masked, not as a keyed hash.")
]
LogJSON = Annotated[bool, option("A2C_LOG_JSON", "--log-json", "Log as JSON lines.")]


def audit_settings(audit: Path | None, *, with_arguments: bool) -> dict[str, Any]:
    """--audit and --audit-arguments, under their names in settings. Raises `WrongUse` if nothing is recorded."""
    if with_arguments and audit is None:
        raise WrongUse("--audit-arguments has no meaning without --audit", "Give --audit FILE too.")
    return {"audit": audit, "audit_arguments": with_arguments}


def checked_folder(path: Path | None, flag: str) -> Path | None:
    """A folder that exists, or can be made later. Raises `WrongUse`."""
    if path is not None and path.exists() and not path.is_dir():
        raise WrongUse(f"{flag}: {path} is not a folder", "Name a folder; it is made if it is missing.")
    return path


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


def tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS context for --ca, --cert and --cert-key; `None` for the default. Raises `WrongUse`."""
    if not (ca or cert):
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        what = f"--ca, --cert or --cert-key cannot be used: {error.strerror or error}"
        raise WrongUse(what, "They name files in PEM format, which this user may read.") from None
    return context


SHORTEST_KEY = 16
"""Characters of an API key. A shorter one can be guessed."""

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
