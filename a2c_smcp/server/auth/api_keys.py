"""API keys: some that may do anything, and a keys file of those that may do some things."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias, get_args

from a2c_smcp.devices.transcript import is_fingerprint
from a2c_smcp.errors import NotPrivate
from a2c_smcp.files import check_private, lock, replace_file
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.authentication import (
    OPERATOR_ROLES,
    AuthenticationProvider,
    Principal,
    changes_of_keys,
    credentials,
)
from a2c_smcp.types import Role

logger = logging.getLogger(__name__)


class DefaultAuthenticationProvider(AuthenticationProvider):
    """Admits clients by API key. `api_keys` may do anything, those in `keys_file` what the file says.

    Without any key no client is admitted. Raises `ValueError` (`KeysFileError`) for keys that cannot be used.
    """

    options = "--api-key", "--keys-file"
    """The options of the program that give a key, and the file."""

    def __init__(
        self, api_keys: str | Iterable[str] = (), keys_file: Path | str | None = None, field: str = "token"
    ) -> None:
        keys = (api_keys,) if isinstance(api_keys, str) else tuple(api_keys)
        if not all(keys):
            raise ValueError("an API key is empty: leave it out, or make one with new_key()")
        self._field = field
        self._file = Path(keys_file) if keys_file is not None else None
        self._free = {hash_key(key): self._free_holder(hash_key(key)) for key in keys}
        self._in_file = self._read(self._file) if self._file else {}
        self._withheld = frozenset[str]()
        self._holders = self._free | self._in_file

    @property
    def file(self) -> Path | None:
        """The keys file, if there is one."""
        return self._file

    @property
    def holders(self) -> tuple[Principal, ...]:
        """The holders of all keys, by `credential`, which is the id of a key."""
        return tuple(self._holders.values())

    def is_in_file(self, holder: Principal) -> bool:
        """True if this key is in the keys file. Others are options of the program."""
        return all(holder.credential != free.credential for free in self._free.values())

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        holders = [holder for key in credentials(auth, headers, self._field) if (holder := self.holder_of(key))]
        return next((holder for holder in holders if not holder.expired), holders[0] if holders else False)

    def valid(self, principal: Principal) -> bool:
        return self.current(principal) is not None

    def current(self, principal: Principal) -> Principal | None:
        """The holder of the same key, if it may still do exactly the same things."""
        holder = next((each for each in self.holders if each.credential == principal.credential), None)
        is_same = holder is not None and replace(holder, expires=principal.expires) == principal
        return holder if holder and is_same and not holder.expired else None

    def reload(self) -> None:
        if self._file is None:
            super().reload()
            return
        before = self._holders
        try:
            self._in_file = self._read(self._file)
        except KeysFileError as error:
            self.trouble = f"the keys are not reloaded, the earlier ones stay: {error}"
        else:
            self.trouble = ""
            self._withheld &= {holder.credential for holder in self._in_file.values()}
        admitted = {key: each for key, each in self._in_file.items() if each.credential not in self._withheld}
        self._holders = self._free | admitted
        if self.trouble:
            logger.error("%s", self.trouble)
        else:
            logger.info("%s: read again, %s", self._file, changes_of_keys(before, self._holders))

    def withhold(self, credential: str) -> None:
        """Refuse a key from the next `reload` on, for as long as this process runs and the file has the key.

        Keys that were given as options cannot be revoked, and stay.
        """
        self._withheld |= {credential}

    def holder_of(self, key: str) -> Principal | None:
        """Compares every key, also after one was found: the time it takes reveals nothing."""
        match, presented = None, hash_key(key)
        for known, holder in self._holders.items():
            if hmac.compare_digest(known, presented):
                match = holder
        return match

    def _free_holder(self, hashed: str) -> Principal:
        return _holder(hashed)

    def _read(self, path: Path) -> dict[str, Principal]:
        return _read_keys(path)


class OperatorKeys(DefaultAuthenticationProvider):
    """Admin keys: one for all operators (`admin_key`), and a file of those that have a name and a role.

    They admit no client. Raises `ValueError` (`KeysFileError`) for keys that cannot be used.
    """

    options = "--admin-key", "--admin-keys-file"

    def __init__(self, admin_key: str | None = None, keys_file: Path | None = None) -> None:
        super().__init__(() if admin_key is None else admin_key, keys_file)

    def _free_holder(self, hashed: str) -> Principal:
        return _holder(hashed, Principal("admin", roles=frozenset({"operator"})))

    def _read(self, path: Path) -> dict[str, Principal]:
        try:
            check_private(path)
        except NotPrivate as error:
            raise KeysFileError(error.about) from None
        return _read_keys(path, of_operators=True)


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
    if OPERATOR_ROLES.intersection(entry.get("roles", ())) and (len(entry["roles"]) > 1 or _OF_CLIENTS & entry.keys()):
        raise KeysFileError("roles: a viewer or an operator has no other role, and no offices, names or device")
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


def _read_keys(path: Path, *, of_operators: bool = False) -> dict[str, Principal]:
    holders = {}
    for number, (hashed, entry) in enumerate(read_entries(path).items(), 1):
        if not _HASH.fullmatch(hashed):  # not quoted: it may be the key itself
            raise KeysFileError(
                f"{path}: entry {number}: its name must be sha256: and 64 hexadecimal digits in lower case, "
                "as `a2c-smcp key` prints it"
            )
        try:
            holders[hashed] = _holder(hashed, read_entry(entry))
            if holders[hashed].is_operator != of_operators:
                raise KeysFileError(_WRONG_FILE)
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
    known = (*get_args(Role), *OPERATOR_ROLES)
    return None if value in known else 'must be "agent" or "computer", or of an admin key "viewer" or "operator"'


_WRONG_FILE = (
    "roles: keys of viewers and operators are in a file of their own (--admin-keys-file), and no others are in it"
)
_OF_CLIENTS = {"offices", "names", "device"}
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

# Changes of a keys file: each one reads it, checks the result and replaces it in one step, under a lock.
#
# The lock is on its folder, so that several processes of a Server, and `a2c-smcp key --add-to`, do not overwrite each
# other's changes. On Windows there is none.

Entries: TypeAlias = dict[str, object]
"""The entries of a keys file by the hash of their key."""

_PATIENCE = 2.0
_TRY_AGAIN = 0.01


def change_keys(path: Path, change: Callable[[Entries], Entries]) -> None:
    """Replaces the entries of a keys file, which is made if there is none. Only its owner may read it.

    Raises `KeysFileError` if the file, or one of the new entries, cannot be used; and `OSError`.
    """
    with change_lock(path):
        entries, kinds = change(read_entries(path) if path.exists() else {}), set[bool]()
        for hashed, entry in entries.items():
            try:
                kinds.add(read_entry(entry).is_operator)
                if len(kinds) > 1:
                    raise KeysFileError(_WRONG_FILE)
            except KeysFileError as error:
                raise KeysFileError(f"{path}: entry {hashed[:15]}…: {error}") from None
        content = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
        replace_file(path, content.encode("utf-8", "surrogatepass"))


def cannot_change(path: Path) -> str:
    """Why nothing can be changed in a keys file: no file can be made beside it. Empty if it can."""
    try:
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def entry_of(entries: Mapping[str, object], wanted: str) -> tuple[str, object] | None:
    """The hash and the entry of the key with this id."""
    return next(((hashed, entry) for hashed, entry in entries.items() if key_id(hashed) == wanted), None)


@contextmanager
def change_lock(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file of this folder. Raises `KeysFileError`.

    Changes take milliseconds: a lock that is held for longer belongs to a process that stands still.
    """
    if os.name != "posix":
        yield
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not lock(descriptor):
            if time.monotonic() > deadline:
                raise KeysFileError(f"{path}: another program is changing it, try again in a moment")
            time.sleep(_TRY_AGAIN)
        yield
    finally:
        os.close(descriptor)
