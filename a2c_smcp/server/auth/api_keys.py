"""API keys: some that may do anything, and a keys file of those that may do some things."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from a2c_smcp.devices.transcript import is_fingerprint
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal, credentials
from a2c_smcp.types import Role

__all__ = [
    "DefaultAuthenticationProvider",
    "KeysFileError",
    "hash_key",
    "key_id",
    "new_key",
    "read_entries",
    "read_entry",
]

logger = logging.getLogger(__name__)


class DefaultAuthenticationProvider(AuthenticationProvider):
    """Admits clients by API key. `api_keys` may do anything, those in `keys_file` what the file says.

    Without any key no client is admitted. Raises `ValueError` (`KeysFileError`) for keys that cannot be used.
    """

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

    @property
    def file(self) -> Path | None:
        """The keys file, if there is one."""
        return self._file

    @property
    def holders(self) -> tuple[Principal, ...]:
        """The holders of all keys, by `credential`, which is the id of a key."""
        return tuple(self._holders.values())

    def is_in_file(self, holder: Principal) -> bool:
        """Whether this key is in the keys file. Others are options of the program."""
        return all(holder.credential != free.credential for free in self._free.values())

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        found = [holder for key in credentials(auth, headers, self._field) if (holder := self._find(hash_key(key)))]
        return next((holder for holder in found if not holder.expired), found[0] if found else False)

    def valid(self, principal: Principal) -> bool:
        return self.current(principal) is not None

    def current(self, principal: Principal) -> Principal | None:
        """The holder of the same key, if it may still do exactly the same things."""
        holder = next((each for each in self.holders if each.credential == principal.credential), None)
        is_same = holder is not None and replace(holder, expires=principal.expires) == principal
        return holder if holder and is_same and not holder.expired else None

    def reload(self) -> None:
        if self._file is None:
            return
        try:
            self._holders = self._free | _read_keys(self._file)
        except KeysFileError as error:
            logger.error("the keys are not reloaded, the earlier ones stay: %s", error)  # noqa: TRY400

    def _find(self, presented: str) -> Principal | None:
        """Compares every key, also after one was found: the time it takes reveals nothing."""
        found = None
        for known, holder in self._holders.items():
            if hmac.compare_digest(known, presented):
                found = holder
        return found


def new_key() -> str:
    return f"a2c_{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """The hash of a key, which a keys file holds in place of the key."""
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


class KeysFileError(ValueError):
    """A keys file cannot be used. It says where, and what to write instead."""


def read_entry(entry: object) -> Principal:
    """The holder of a key, from an entry of a keys file. Raises `KeysFileError`, which names the field."""
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
    return Principal(entry["principal"], **scope, expires=_moment(entry.get("expires")), device=entry.get("device"))


def read_entries(path: Path) -> dict[str, object]:
    """The entries of a keys file by hash, unchecked. Raises `KeysFileError`."""
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


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        known = f"{twice[:15]}…" if _HASH.fullmatch(twice) else repr(twice) if twice in _FIELDS else "a name"
        raise ValueError(f"{known} stands there twice, keep one")
    return entries


def key_id(hashed: str) -> str:
    """A key is identified by a short digest of its hash: enough to tell keys apart, too little to try keys against."""
    return f"key-{hashlib.sha256(bytes.fromhex(hashed.removeprefix('sha256:'))).hexdigest()[:8]}"


def _holder(hashed: str, principal: Principal | None = None) -> Principal:
    token, fingerprint = bytes.fromhex(hashed.removeprefix("sha256:")), key_id(hashed)
    return replace(principal or Principal(fingerprint), credential=fingerprint, token=token)


def _moment(value: object) -> float | None:
    """Epoch seconds from a number or an ISO date and time with its zone; `None` from any other value."""
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
_DEVICE_FAULT = "must be the fingerprint of a device, as `a2c-smcp device` prints it"
_MOMENT_FAULT = 'must be a date and time with its zone, such as "2027-01-01T00:00:00Z", or epoch seconds'
_FIELDS: dict[str, Callable[[object], str | None]] = {
    "principal": lambda value: f"{fault}, such as alice" if (fault := fault_in(value)) else None,
    "offices": lambda value: _list_fault(value, fault_in, '["desk", "team-*"]'),
    "roles": lambda value: _list_fault(value, _role_fault, '["agent"]'),
    "names": lambda value: _list_fault(value, fault_in, '["planner"]'),
    "expires": lambda value: _MOMENT_FAULT if _moment(value) is None else None,
    "device": lambda value: None if is_fingerprint(value) else _DEVICE_FAULT,
}
