"""Who may connect, and which offices, roles and names are theirs. Whatever is not a clear yes is a no."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import re
import secrets
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

from a2c_smcp.errors import NotAuthenticated, NotAuthorised
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.types import Role

__all__ = [
    "ANYBODY",
    "MAX_CREDENTIAL",
    "AuthenticationProvider",
    "DefaultAuthenticationProvider",
    "KeysFileError",
    "Principal",
    "admit",
    "credentials",
    "hash_key",
    "new_key",
    "read_entries",
    "read_entry",
]

MAX_CREDENTIAL = 16_384
"""The longest credential that is looked at, in characters."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who has been authenticated. `None` means any; offices and names are shell-style patterns.

    `expires` is in epoch seconds. `credential` tells, without giving it away, which one they came with.
    """

    id: str
    offices: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    names: frozenset[str] | None = None
    expires: float | None = None
    credential: str = field(default="", compare=False)

    @property
    def expired(self) -> bool:
        return self.expires is not None and not time.time() < self.expires

    def allows(self, role: Role, name: str, office_id: str) -> bool:
        """Whether this role, name and office are all theirs."""
        try:
            self.check(role, name, office_id)
        except NotAuthorised:
            return False
        return True

    def check(self, role: Role, name: str, office_id: str) -> None:
        """Raises `NotAuthorised` unless this role, name and office are all theirs."""
        if self.roles is not None and role not in self.roles:
            raise NotAuthorised(f"{self.id!r} may not use role {role!r}", field="role")
        if not _matches(name, self.names):
            raise NotAuthorised(f"{self.id!r} may not use name {name!r}", field="name")
        if not _matches(office_id, self.offices):
            raise NotAuthorised(f"{self.id!r} may not use office {office_id!r}", field="office_id")


ANYBODY = Principal("anonymous")


class AuthenticationProvider(ABC):
    """Tells who is connecting. A deployer with accounts of his own writes one."""

    @abstractmethod
    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        """`True` admits anybody, a `Principal` admits them. `auth` is CONNECT's, `headers` have lower-case names.

        `sio` is the user's own `socketio.AsyncServer` under `SMCPNamespace`, and `None` in a Server of ours.
        """

    def valid(self, principal: Principal) -> bool:
        """Whether somebody admitted earlier may stay. Asked after a reload."""
        return True

    def reload(self) -> None:
        """Reads again what may have changed. Called on SIGHUP."""
        return


async def admit(
    provider: AuthenticationProvider,
    sio: Any,
    environ: dict[str, Any],
    auth: object,
    headers: Mapping[str, str],
    timeout: float = 5.0,
) -> Principal:
    """Who is connecting. Raises `NotAuthenticated` for everything but a clear yes in time."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout
    try:
        async with asyncio.timeout_at(deadline):
            answer: object = await provider.authenticate(sio, environ, auth, headers)
        return _judge(answer, late=clock() > deadline)
    except (asyncio.CancelledError, NotAuthenticated):
        raise
    except BaseException as error:  # a panic in native code, or somebody's sys.exit(), is no yes either
        logger.error("authentication failed\n%s", _trace(error))  # noqa: TRY400
        raise NotAuthenticated("authentication is not working") from None


def credentials(auth: object, headers: Mapping[str, str], field: str = "token") -> list[str]:
    """Every credential presented, in the order of WIRE §1. Empty, repeated and oversized ones are left out."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    presented = (
        auth.get(field) if isinstance(auth, dict) else None,
        bearer.strip() if scheme.lower() == "bearer" else None,
        headers.get("x-api-key"),
        headers.get("access_token"),
    )
    return list(dict.fromkeys(key for key in presented if isinstance(key, str) and 0 < len(key) <= MAX_CREDENTIAL))


class DefaultAuthenticationProvider(AuthenticationProvider):
    """API keys: some that may do anything, and a file of those that may do some things. Without any, nobody enters."""

    def __init__(
        self, api_keys: str | Iterable[str] = (), keys_file: Path | str | None = None, field: str = "token"
    ) -> None:
        keys = (api_keys,) if isinstance(api_keys, str) else tuple(api_keys)
        if not all(keys):
            raise ValueError("an API key is empty: leave it out, or make one with new_key()")
        self._field = field
        self._file = Path(keys_file) if keys_file is not None else None
        self._free = {hash_key(key): _holder(hash_key(key)) for key in keys}
        self._holders = self._free | (_read_keys(self._file) if self._file else {})

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        found = [holder for key in credentials(auth, headers, self._field) if (holder := self._find(hash_key(key)))]
        return next((holder for holder in found if not holder.expired), found[0] if found else False)

    def valid(self, principal: Principal) -> bool:
        return any(
            (holder, holder.credential) == (principal, principal.credential) for holder in self._holders.values()
        )

    def reload(self) -> None:
        if self._file is None:
            return
        try:
            self._holders = self._free | _read_keys(self._file)
        except KeysFileError as error:
            logger.error("the keys are not reloaded, the earlier ones stay: %s", error)  # noqa: TRY400

    def _find(self, presented: str) -> Principal | None:
        """Looks at every key, found or not: the time it takes tells nothing."""
        found = None
        for known, holder in self._holders.items():
            if hmac.compare_digest(known, presented):
                found = holder
        return found


def new_key() -> str:
    return f"a2c_{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """What a keys file holds in place of the key."""
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


class KeysFileError(ValueError):
    """A keys file that cannot be used: where, and what to write instead."""


def read_entry(entry: object) -> Principal:
    """The holder of a key, as a keys file describes them. Raises `KeysFileError` naming the field."""
    if not isinstance(entry, dict):
        raise KeysFileError('must be an object, such as {"principal": "alice"}')
    for name, value in entry.items():
        if name not in _FIELDS:
            raise KeysFileError(f"{name!r}: no such field, the fields are {', '.join(_FIELDS)}")
        if fault := _FIELDS[name](value):
            raise KeysFileError(f"{name}: {fault}")
    if "principal" not in entry:
        raise KeysFileError('principal: missing, say who holds the key, such as "principal": "alice"')
    scope: dict[str, Any] = {name: frozenset(entry[name]) for name in ("offices", "roles", "names") if name in entry}
    return Principal(entry["principal"], **scope, expires=_moment(entry.get("expires")))


def read_entries(path: Path) -> dict[str, Any]:
    """A keys file as it is written, by hash. Raises `KeysFileError`."""
    try:
        entries = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=_object)
    except OSError as error:
        raise KeysFileError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise KeysFileError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise KeysFileError(f"{path}: not a JSON object of keys: {error}") from None
    if not isinstance(entries, dict):
        raise KeysFileError(f'{path}: must be an object, such as {{"sha256:…": {{"principal": "alice"}}}}')
    return entries


def _read_keys(path: Path) -> dict[str, Principal]:
    holders = {}
    for number, (hashed, entry) in enumerate(read_entries(path).items(), 1):
        if not _HASH.fullmatch(hashed):  # not quoted: it may be the key itself
            raise KeysFileError(
                f"{path}: entry {number}: its name must be sha256: and 64 hexadecimal digits in lower case, "
                "as `a2c-smcp key` prints it"
            )
        try:
            holders[hashed] = _holder(hashed, read_entry(entry))
        except KeysFileError as error:
            raise KeysFileError(f"{path}: entry {hashed[:15]}…: {error}") from None
    return holders


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        known = f"{twice[:15]}…" if _HASH.fullmatch(twice) else repr(twice) if twice in _FIELDS else "a name"
        raise ValueError(f"{known} stands there twice, keep one")
    return entries


def _holder(hashed: str, principal: Principal | None = None) -> Principal:
    """A key is known by a digest of its digest, cut short: enough to tell keys apart, too little to try them out."""
    fingerprint = f"key-{hashlib.sha256(bytes.fromhex(hashed.removeprefix('sha256:'))).hexdigest()[:8]}"
    return replace(principal or Principal(fingerprint), credential=fingerprint)


def _trace(error: BaseException) -> str:
    """The traceback without the exception's own words, which may quote a credential."""
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


def _moment(value: object) -> float | None:
    """Epoch seconds out of a number or an ISO date and time with its zone; `None` out of anything else."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.timestamp() if moment.tzinfo else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except (ValueError, OverflowError):
        pass
    return None


def _list_fault(value: object, fault_of: Callable[[object], str | None], example: str) -> str | None:
    if not isinstance(value, list) or not value:
        return f"must be a list such as {example}, or left out where any will do"
    fault = next((fault for item in value if (fault := fault_of(item))), None)
    return f"each one {fault}, such as in {example}" if fault else None


def _role_fault(value: object) -> str | None:
    return None if value in get_args(Role) else 'must be "agent" or "computer"'


_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_MOMENT_FAULT = 'must be a date and time with its zone, such as "2027-01-01T00:00:00Z", or epoch seconds'
_FIELDS: dict[str, Callable[[object], str | None]] = {
    "principal": lambda value: f"{fault}, such as alice" if (fault := fault_in(value)) else None,
    "offices": lambda value: _list_fault(value, fault_in, '["desk", "team-*"]'),
    "roles": lambda value: _list_fault(value, _role_fault, '["agent"]'),
    "names": lambda value: _list_fault(value, fault_in, '["planner"]'),
    "expires": lambda value: _MOMENT_FAULT if _moment(value) is None else None,
}
