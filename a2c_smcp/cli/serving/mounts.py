"""`--mcp`: every office of a Server as an MCP server at `/mcp/<office>`, mounted on that Server."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from a2c_smcp.cli.bridging import kept_file
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import SHORTEST_KEY, WITHDRAW_AFTER
from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ConfigError, NotPrivate
from a2c_smcp.files import default_folder
from a2c_smcp.server.app import SMCPApp
from a2c_smcp.server.auth.api_keys import KeysFileError, OperatorKeys, cannot_change, new_key
from a2c_smcp.server.auth.grants import SignIn
from a2c_smcp.server.http_requests import CONSOLE_PATH
from a2c_smcp.server.run import address_of, listen
from a2c_smcp.web import ASGIApp, is_loopback, under_new_name

logger = logging.getLogger(__name__)

DEFAULT_IDLE = 60
"""Seconds after the last request of an MCP client until its agent leaves the office."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInOptions:
    """`--sign-in`: grants are in the store that nodes share, or in `file`, or in the state folder."""

    public_url: str | None = None
    file: Path | None = None
    is_in_store: bool = False
    hosts: frozenset[str] = frozenset()
    reads_documents: bool = True

    def at(self, place: str) -> SignIn:
        """The setting of a Server that listens at the URL `place`. Raises `WrongUse`."""
        url = (self.public_url or place).rstrip("/")
        file = None if self.is_in_store else self.file or _kept_file(url, "", "grants.json")
        if file and (why := cannot_change(file)):
            logger.warning("nobody can sign in: %s cannot be written: %s", file, why)
        try:
            return SignIn(public_url=url, file=file, private_clients=self.hosts, reads_documents=self.reads_documents)
        except ConfigError as error:
            raise WrongUse(f"--public-url: {error.about}", "Write https://HOST, or http://127.0.0.1:PORT.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPOptions:
    """`issuer` is the one that tokens must have, if the Server accepts tokens.

    With `e2e`, calls are sealed between this Server's own agents and computers. MCP clients are not the end of that
    seal, this process is: it reads along. With `has_card`, there is a `ServerCard`.
    """

    idle: float = DEFAULT_IDLE
    withdraw_after: float = WITHDRAW_AFTER
    issuer: str | None = None
    e2e: Sealing = "off"
    sign_in: SignInOptions | None = None
    has_card: bool = False

    @property
    def authorization_servers(self) -> tuple[str, ...]:
        """Where MCP clients may get a token. An issuer that is no URL tells them nothing."""
        is_url = self.issuer is not None and urlsplit(self.issuer).scheme in ("http", "https")
        return (self.issuer,) if self.issuer and is_url else ()


def mount_offices(app: SMCPApp, place: str, options: MCPOptions) -> socket.socket:
    """Serves the offices of a Server that clients reach at the URL `place`.

    Returns the listener on which the Server must serve its own agents.
    """
    # MCP's SDK takes a second to import: a Server without --mcp does not wait for it.
    from a2c_smcp.bridge.office import BridgeOptions
    from a2c_smcp.bridge.on_server import CARD_PATH, PREFIXES, OfficesAsMCPServers, SeatOptions, ServerCard
    from a2c_smcp.bridge.other_nodes import Occupant
    from a2c_smcp.cli.bridging import explain_with

    def bridge(occupant: Occupant) -> BridgeOptions:
        office = occupant.office
        return BridgeOptions(
            names_file=_kept_file(place, office, "json"),
            explain=explain_with(place, office, None),
            max_request=app.settings.limits.max_message,
            withdraw_after=options.withdraw_after,
        )

    own = listen("127.0.0.1", 0)
    seats = SeatOptions(
        idle=options.idle,
        bridge=bridge,
        e2e=options.e2e,
        origin=Endpoint(url=place).origin,
        on_seen=app.observation.report,
        on_refused=app.hub.refuse_handshake,
        on_call_refused=app.observation.report_refused,
    )
    url = f"http://{address_of(own)}"
    offices: ASGIApp = OfficesAsMCPServers(app, url, options.authorization_servers, seats)
    if options.has_card:
        card = ServerCard(needs_key=app.settings.auth is not None)
        app.mount(card, CARD_PATH, has_cors=False)
        offices = card.beside(offices)
    app.mount(offices, *PREFIXES)
    if app.grants:
        from a2c_smcp.console import sign_in

        app.mount(sign_in.SignInPages(app), *sign_in.PREFIXES, has_cors=False)
    return own


def _kept_file(place: str, office: str, ending: str) -> Path | None:
    """A file of names of tools or grants, which a restart keeps; `None` if there is no place for it."""
    try:
        return kept_file(place, office, ending)
    except (OSError, NotPrivate) as error:
        logger.warning("names of tools and grants may be lost with a restart: %s", error)
        return None


def freezes_file(place: str, *, has_operators: bool) -> Path | None:
    """The file of what is frozen on a Server that listens at the URL `place`.

    Without operators it is read only: what is frozen stays so. `None` if there is no place for it. Raises `ConfigError`
    if there is one that cannot be used: nobody knows then what is frozen.
    """
    try:
        is_there = os.path.lexists(default_folder())
        if not (has_operators or is_there):
            return None
    except (OSError, RuntimeError):  # this user has no home
        return None
    try:
        return kept_file(place, "", "freezes.json")
    except (OSError, NotPrivate) as error:
        if is_there:
            why = error.about if isinstance(error, NotPrivate) else error
            raise ConfigError(f"the state folder says what is frozen, and cannot be used: {why}") from None
        logger.warning("what is frozen may be lost with a restart: %s", error)
        return None


def mcp_url(place: str, office: str | None = None) -> str:
    """The URL of an office as an MCP server; without one, how it is made."""
    return f"{place}/mcp/{'<office>' if office is None else quote(office, safe='')}"


# `--admin-key` and `--console`: what operators are served, and the link that is printed for them.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """The admin keys, and whether there are pages. `is_link`: nobody knows the key, the pages are opened by a link."""

    key: str | None = field(default=None, repr=False)
    file: Path | None = None
    has_console: bool = False
    is_link: bool = False


def operator_options(
    key: str | None, file: Path | None, api_keys: Sequence[str], *, console: bool, host: str, is_shared: bool
) -> OperatorOptions:
    """Raises `WrongUse`. Clients are not admitted by an admin key, also if it is in a keys file."""
    if key is not None and len(key) < SHORTEST_KEY:
        raise WrongUse(
            f"The admin key has fewer than {SHORTEST_KEY} characters, and can be guessed",
            f"Here is a new one that you can use: {new_key()}",
        )
    if key is not None and key in api_keys:
        raise WrongUse(
            "--admin-key and --api-key are the same, and a client's key must not open the operator's interface",
            f"Here is another admin key that you can use: {new_key()}",
        )
    try:
        OperatorKeys(None, file)
    except KeysFileError as error:
        raise WrongUse(str(error), "Correct that; `a2c-smcp key --role viewer --add-to FILE` makes entries.") from None
    is_link = console and key is None and file is None
    if is_link and (is_shared or not is_loopback(host)):
        raise WrongUse(
            "--console needs an admin key, unless one process serves this machine alone",
            f"Give --admin-keys-file or --admin-key; here is one that you can use: {new_key()}",
        )
    return OperatorOptions(key=new_key() if is_link else key, file=file, has_console=console, is_link=is_link)


def mount_console(app: SMCPApp, options: OperatorOptions) -> Callable[[str], str]:
    """Serves the pages. Returns a function that says where they are, of a Server that is reached at a URL."""
    from a2c_smcp.console.operator.console import OperatorConsole

    assert app.operations
    assert app.admin_access
    console = OperatorConsole(app.operations, app.admin_access, has_form=not options.is_link)
    app.mount(console, CONSOLE_PATH, has_cors=False)

    def address(place: str) -> str:
        named = under_new_name(place)
        return console.link(named) if options.is_link else f"{named}{CONSOLE_PATH}/"

    return address
