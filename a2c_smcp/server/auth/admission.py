"""Letting clients in: a clear yes of the provider, and for a bound key or token the proof of its device (WIRE §10).

The proof is compared with what this Server knows by itself: its configured origins, the Engine.IO sid that it gave to
the session, its clock, and the token that was presented. Host and X-Forwarded-* count for nothing: all who
relay a connection can write them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from a2c_smcp.endpoint import Endpoint
from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import BadRequest, ConfigError, DeviceMismatch, NotAuthenticated, SMCPError
from a2c_smcp.http.loopback import LOOPBACK_HOSTS
from a2c_smcp.protocol.codec import loads
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Handshake, Principal, admit, credentials

__all__ = ["Admission", "BoundKeys", "checked_origin", "loopback_origins", "no_sid", "read_auth"]

OnRefused: TypeAlias = Callable[[str | None, SMCPError, Principal | None], None]
"""Is told the address of a client that was refused, why, and who it is if that is known."""


def read_auth(auth: Json) -> object:
    """The object of a CONNECT; `None` if there is none, or it cannot be read."""
    try:
        return loads(str(auth, "utf-8")) if auth else None
    except (BadRequest, UnicodeDecodeError):
        return None


def no_sid() -> None:
    """For a request that belongs to no session: no proof of a device is possible."""


class Admission:
    """Says who a client is. `on_refused` is told of each client that is not let in."""

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
    if endpoint.origin != text.rstrip("/").lower() and not _names_default_port(text, endpoint.origin):
        raise ConfigError(f"{text!r} is not an origin, which looks like {endpoint.origin}")
    if not endpoint.may_sign:
        raise ConfigError(f"{text!r}: clients prove their device over https only, except on this machine")
    return endpoint.origin


def _names_default_port(text: str, origin: str) -> bool:
    return text.rstrip("/").lower() in (f"{origin}:443", f"{origin}:80")


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
        from a2c_smcp.devices.proof import ClockDiffers, check_proof

        now, proof = time.time(), auth.get("device") if isinstance(auth, dict) else None
        sid = take_sid() if proof is not None else None
        if proof is not None and sid is None:
            raise NotAuthenticated("this key is bound to a device, which cannot be proved here or not once more")
        digests = [principal.token] if principal.token else [_digest(key) for key in credentials(auth, headers)]
        try:
            check_proof(
                proof, device=principal.device, origins=self.origins, sid=sid or "", now=now, token_digests=digests
            )
        except ClockDiffers as error:
            raise NotAuthenticated(error.about, now=int(now)) from None
        except DeviceMismatch as error:
            raise NotAuthenticated(error.about, device=True) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
