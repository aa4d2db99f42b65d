"""Authentication: who a client is, and which offices, roles and names are theirs.

A client is admitted only by a clear yes of the provider in time; every other answer, and every failure, is a no.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import msgspec

from a2c_smcp.endpoint import Endpoint
from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import (
    BadRequest,
    ConfigError,
    DeviceMismatch,
    NotAuthenticated,
    NotAuthorised,
    SMCPError,
    Unavailable,
)
from a2c_smcp.protocol.codec import loads
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.types import Role
from a2c_smcp.web import LOOPBACK_HOSTS

logger = logging.getLogger(__name__)

MAX_CREDENTIAL = 16_384
"""The longest credential that is read, in characters."""


OPERATOR_ROLES = frozenset({"viewer", "operator"})
"""A viewer sees all that operators see, and changes nothing."""

_MCP = "mcp:"
_DIGEST = "sha256:"


def mcp_name(principal: str) -> str:
    """The name of the agent that a principal's MCP clients are: no other principal may use it (WIRE §4).

    A digest stands for a principal that does not fit into a name.
    """
    name = _MCP + principal
    if principal.startswith(_DIGEST) or fault_in(name):
        return f"{_MCP}{_DIGEST}{hashlib.sha256(principal.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    return name


@dataclass(frozen=True, slots=True)
class Principal:
    """A client that was authenticated. `None` means any; offices and names are shell-style patterns.

    `expires` is in epoch seconds. `device` is the fingerprint of the device that has to be proved. `credential`
    identifies the credential that was used, and does not reveal it; `token` is its SHA-256, for that proof.
    """

    id: str
    offices: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    names: frozenset[str] | None = None
    expires: float | None = None
    credential: str = field(default="", compare=False)
    device: str | None = None
    token: bytes = field(default=b"", compare=False, repr=False)

    @property
    def is_operator(self) -> bool:
        """True for the holder of an admin key, who has no place in an office."""
        return bool(self.roles and self.roles <= OPERATOR_ROLES)

    @property
    def expired(self) -> bool:
        return self.expires is not None and not time.time() < self.expires

    def allows(self, role: Role, name: str, office_id: str) -> bool:
        """True if the client may use this role, name and office."""
        try:
            self.check(role, name, office_id)
        except NotAuthorised:
            return False
        return True

    def allows_name(self, name: str) -> bool:
        """True if the client may use this name, in any office and role."""
        return _matches(name, self.names)

    def check(self, role: Role, name: str, office_id: str) -> None:
        """Raises `NotAuthorised` unless the client may use this role, name and office."""
        if self.roles is not None and role not in self.roles:
            raise NotAuthorised(f"{self.id!r} may not use role {role!r}", field="role")
        if not self.allows_name(name):
            raise NotAuthorised(f"{self.id!r} may not use name {name!r}", field="name")
        if role == "agent" and name.startswith(_MCP) and name != mcp_name(self.id):
            raise NotAuthorised(f"{name!r} is for MCP clients of another principal than {self.id!r}", field="name")
        if not _matches(office_id, self.offices):
            raise NotAuthorised(f"{self.id!r} may not use office {office_id!r}", field="office_id")


def agent_name(principal: Principal) -> str:
    """The name of the agent of a principal's MCP clients: its own, or the first that its key names.

    Raises `NotAuthorised`.
    """
    own = mcp_name(principal.id)
    if principal.allows_name(own):
        return own
    names = [name for name in sorted(principal.names or ()) if not _WILDCARDS & {*name}]
    if not names:
        raise NotAuthorised(f"{principal.id!r} may use names by pattern only, and {own!r} is none of them")
    return names[0]


_WILDCARDS = frozenset("*?[")
ANYBODY = Principal("anonymous")


class AuthenticationProvider(ABC):
    """Identifies clients. Write one of your own if you have accounts of your own.

    `trouble` says why the last `reload` failed; empty if it did not.
    """

    trouble = ""

    @abstractmethod
    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        """Returns a `Principal`, `True` for a client that may do anything, or `False` to refuse.

        `auth` is the object of CONNECT, and `headers` have lower-case names. `sio` is the user's own
        `socketio.AsyncServer` under `SMCPNamespace`, and `None` otherwise.
        """

    def valid(self, principal: Principal) -> bool:
        """True if a client that was admitted earlier may stay. It is called after a reload."""
        return True

    def current(self, principal: Principal) -> Principal | None:
        """A client that was admitted earlier, as it may stay: its credential may expire at another time now.

        `None` if it may not stay. It is called after a reload.
        """
        return principal if self.valid(principal) else None

    def reload(self) -> None:
        """Reads the credentials again, and logs what has changed. It is called on SIGHUP."""
        logger.info("there is no file of keys that could be read again")

    def withhold(self, credential: str) -> None:
        """Refuse a credential from the next `reload` on: it was revoked, and cannot be taken out where it stands."""
        return


def changes_of_keys(before: Mapping[Any, object], after: Mapping[Any, object]) -> str:
    """Changes of a reload, in words: "2 keys added, 1 removed"."""
    counts = {
        "added": len(after.keys() - before.keys()),
        "removed": len(before.keys() - after.keys()),
        "changed": sum(before[key] != after[key] for key in before.keys() & after.keys()),
    }
    words = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return words.replace(" ", " key " if words.startswith("1 ") else " keys ", 1) or "nothing changed"


async def admit(
    provider: AuthenticationProvider,
    sio: Any,
    environ: dict[str, Any],
    auth: object,
    headers: Mapping[str, str],
    timeout: float = 5.0,
) -> Principal:
    """Asks the provider who a client is. Raises `NotAuthenticated` for everything but a clear yes in time.

    A provider that cannot know it now may raise `Unavailable`: the client need not give its credential up.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout
    try:
        async with asyncio.timeout_at(deadline):
            answer: object = await provider.authenticate(sio, environ, auth, headers)
        return _judge(answer, late=clock() > deadline)
    except (asyncio.CancelledError, NotAuthenticated, Unavailable):
        raise
    except BaseException as error:  # a panic in native code, or a sys.exit() of the provider, is a no too
        logger.error("authentication failed\n%s", _trace(error))  # noqa: TRY400
        raise NotAuthenticated("authentication is not working") from None


def credentials(auth: object, headers: Mapping[str, str], field: str = "token") -> list[str]:
    """All credentials of a client, in the order of WIRE §1. Empty, repeated and oversized ones are left out."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    presented = (
        auth.get(field) if isinstance(auth, dict) else None,
        bearer.strip() if scheme.lower() == "bearer" else None,
        headers.get("x-api-key"),
        headers.get("access_token"),
    )
    return list(dict.fromkeys(key for key in presented if isinstance(key, str) and 0 < len(key) <= MAX_CREDENTIAL))


class AllowAll(AuthenticationProvider):
    """Admits every client."""

    async def authenticate(self, sio: Any, environ: Any, auth: object, headers: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Handshake:
    """The HTTP request that opened a connection, as authentication sees it.

    `headers` have lower-case names, and the last value of a repeated one. `client` is the peer's address. `sio` is the
    user's own Socket.IO server under `SMCPNamespace`, and `own` the environment that it gave.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    client: str | None = None
    scheme: str = "http"
    path: str = "/socket.io/"
    sio: Any = None
    own: dict[str, Any] | None = None

    @property
    def version(self) -> str | None:
        """The `a2c_version` that the client claims."""
        claimed: list[str | None] = [*parse_qs(self.query, keep_blank_values=True).get("a2c_version", [])]
        return claimed[0] if claimed else None

    @property
    def environ(self) -> dict[str, Any]:
        """The request in the shape that python-socketio gives to its users: that of WSGI, with the ASGI scope in it."""
        if self.own is not None:
            return self.own
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": self.scheme,
            "path": self.path,
            "query_string": self.query.encode("latin-1", "replace"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()],
            "client": (self.client, 0) if self.client else None,
        }
        return {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": self.path,
            "QUERY_STRING": self.query,
            "RAW_URI": f"{self.path}?{self.query}" if self.query else self.path,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": self.client or "",
            "wsgi.url_scheme": self.scheme,
            "asgi.scope": scope,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()},
        }


def _trace(error: BaseException) -> str:
    """The traceback without the message of the exception, which may quote a credential."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}"


def _judge(answer: object, *, late: bool) -> Principal:
    if late:
        raise TimeoutError
    if answer is True:
        return ANYBODY
    if answer is False:
        raise NotAuthenticated
    if not isinstance(answer, Principal):
        logger.error("authentication answered with %s, neither a bool nor a Principal", type(answer).__qualname__)
        raise NotAuthenticated("authentication is not working")
    if answer.expired:
        raise NotAuthenticated("the credential has expired")
    return answer


def _matches(name: str, patterns: frozenset[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


class CredentialUses(msgspec.Struct):
    """The last use of each credential, by its id. Those that were used long ago are discarded.

    A credential that is not in `last` was not used after `since`.
    """

    since: float = msgspec.field(default_factory=time.time)
    last: dict[str, float] = msgspec.field(default_factory=dict)

    def note(self, credential: str) -> None:
        self.last.pop(credential, None)
        self.last[credential] = time.time()
        self._discard()

    def learn(self, kept: CredentialUses) -> None:
        """Take over what nodes have kept."""
        newest = {name: max(at, self.last.get(name, at)) for name, at in kept.last.items()}
        self.last = dict(sorted((self.last | newest).items(), key=lambda use: use[1]))
        self.since = min(self.since, kept.since)
        self._discard()

    def _discard(self) -> None:
        while len(self.last) > _MOST_USES:
            self.since = max(self.since, self.last.pop(next(iter(self.last))))


_MOST_USES = 10_000

# Letting clients in: a clear yes of the provider, and for a bound key or token the proof of its device (WIRE §10).
#
# The proof is compared with what this Server knows by itself: its configured origins, the Engine.IO sid that it gave to
# the session, its clock, and the token that was presented. Host and X-Forwarded-* count for nothing: all who
# relay a connection can write them.

OnRefused: TypeAlias = Callable[[str | None, SMCPError, Principal | None], None]
"""Called with the address of a refused client, the error, and its principal if that is known."""


def read_auth(auth: Json) -> object:
    """The object of a CONNECT; `None` if there is none, or it cannot be read."""
    try:
        return loads(str(auth, "utf-8")) if auth else None
    except (BadRequest, UnicodeDecodeError):
        return None


def no_sid() -> None:
    """Return no sid: a request outside of a session cannot prove a device."""


class Admission:
    """Admits clients. `on_refused` is called for each client that is refused."""

    def __init__(
        self, auth: AuthenticationProvider, on_refused: OnRefused, timeout: float, origins: Iterable[str] = ()
    ) -> None:
        self.bound_keys = BoundKeys(origins)
        self._auth, self._on_refused, self._timeout = auth, on_refused, timeout

    async def admit(
        self, handshake: Handshake, auth: object = None, proving: Callable[[], str | None] = no_sid
    ) -> Principal:
        """Raises `NotAuthenticated`."""
        headers = handshake.headers
        with self.refusing(handshake):
            principal = await admit(self._auth, handshake.sio, handshake.environ, auth, headers, self._timeout)
        with self.refusing(handshake, principal):
            self.bound_keys.check(principal, auth, headers, proving)
        return principal

    @contextmanager
    def refusing(self, handshake: Handshake, principal: Principal | None = None) -> Iterator[None]:
        """Encloses a check of a client. Its refusal is told to `on_refused`."""
        try:
            yield
        except SMCPError as error:
            self._on_refused(handshake.client, error, principal)
            raise


def loopback_origins(scheme: str, port: int) -> tuple[str, ...]:
    """The origins of a Server that is reached on this machine."""
    return tuple(Endpoint(url=f"{scheme}://{name}:{port}").origin for name in LOOPBACK_HOSTS)


def checked_origin(text: str) -> str:
    """An origin as clients sign it. Raises `ConfigError`."""
    endpoint = Endpoint(url=text)
    origin = endpoint.origin
    if text.rstrip("/").lower() not in (origin, f"{origin}:443", f"{origin}:80"):  # it may name the default port
        raise ConfigError(f"{text!r} is not an origin, which looks like {origin}")
    if not endpoint.may_sign:
        raise ConfigError(f"{text!r}: clients prove their device over https only, except on this machine")
    return origin


class BoundKeys:
    """`origins` are the URLs under which clients reach this Server. Without any, no bound key is admitted."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self.origins = tuple(origins)

    def check(
        self, principal: Principal, auth: object, headers: Mapping[str, str], take_sid: Callable[[], str | None]
    ) -> None:
        """Raises `NotAuthenticated` for a principal that is bound to a device and does not prove it.

        `take_sid` returns the sid of the session once: a second proof in the same session is refused.
        """
        if principal.device is None:
            return
        from a2c_smcp.devices.identity import ClockDiffers, check_proof

        now, proof = time.time(), auth.get("device") if isinstance(auth, dict) else None
        sid = take_sid() if proof is not None else None
        if proof is not None and sid is None:
            raise NotAuthenticated("this key is bound to a device, which cannot be proved here or not once more")
        keys = [key.encode("utf-8", "surrogatepass") for key in credentials(auth, headers)]
        digests = [principal.token] if principal.token else [hashlib.sha256(key).digest() for key in keys]
        try:
            check_proof(
                proof, device=principal.device, origins=self.origins, sid=sid or "", now=now, token_digests=digests
            )
        except ClockDiffers as error:
            raise NotAuthenticated(error.about, now=int(now)) from None
        except DeviceMismatch as error:
            raise NotAuthenticated(error.about, device=True) from None
