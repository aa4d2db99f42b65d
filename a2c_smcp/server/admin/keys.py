"""The API keys of a Server, by id: listed, made, ended and replaced. The keys themselves are not known here.

A change is written to the keys file and in force at once: clients whose key has ended are disconnected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from a2c_smcp.errors import BadRequest, NotFound
from a2c_smcp.server.admin.node_view import KeyRow, KeyUses
from a2c_smcp.server.auth.api_keys import (
    DefaultAuthenticationProvider,
    Entries,
    KeysFileError,
    cannot_change,
    change_keys,
    entry_of,
    hash_key,
    key_id,
    new_key,
    read_entry,
)
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal

_NO_FILE = "this Server has no such file of keys: start it with {} FILE, which `a2c-smcp key --add-to FILE` can make"


class KeysFileUnwritable(BadRequest):
    """The keys file is on a read-only file system, belongs to another user, or the disk is full."""


@dataclass(eq=False)
class ServerKeys:
    """`reload` puts a changed keys file in force on this node. `keep` lets later nodes know a key that is withheld."""

    _provider: AuthenticationProvider | None
    _reload: Callable[[], None]
    _keep: Callable[[str], Awaitable[None]]

    def rows(self, uses: KeyUses) -> list[KeyRow]:
        """All keys. Raises `BadRequest`."""
        provider = self._api_keys()
        rows = (_row(holder, fixed=not provider.is_in_file(holder)) for holder in provider.holders)
        return [row.with_uses(uses) for row in rows]

    @cached_property
    def unwritable(self) -> str:
        """Why the keys file could not be changed at first; empty if it can, or if there is none."""
        provider = self._provider
        is_of_file = isinstance(provider, DefaultAuthenticationProvider) and provider.file
        return cannot_change(is_of_file) if is_of_file else ""

    def reload(self, withheld: str = "") -> None:
        """Another node has changed the file, or could not, and withholds a key."""
        if withheld and self._provider:
            self._provider.withhold(withheld)
        self._reload()

    async def create(self, entry: object) -> tuple[str, str]:
        """A new key: its id, and the key itself, which is not kept. Raises `BadRequest`."""
        new, checked = new_key(), _checked(entry)
        await self._change(lambda entries: entries | {hash_key(new): checked})
        return key_id(hash_key(new)), new

    async def expire(self, wanted: str, expires: float) -> None:
        """The key is valid until then. Raises `BadRequest` or `NotFound`."""
        self._check_known(wanted)
        moment = datetime.fromtimestamp(expires, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        await self._change(lambda entries: _with_expiry(entries, wanted, moment))

    async def revoke(self, wanted: str) -> bool:
        """Remove the key from the file. If that cannot be written, withhold the key: returns `False`.

        Raises `BadRequest` or `NotFound`.
        """
        self._check_known(wanted)

        def without(entries: Entries) -> Entries:
            return {hashed: entry for hashed, entry in entries.items() if key_id(hashed) != wanted}

        try:
            await self._change(without)
        except KeysFileUnwritable:
            self.reload(withheld=wanted)
            await self._keep(wanted)
            return False
        return True

    async def rotate(self, wanted: str, grace: float) -> tuple[str, str]:
        """A new key that may do the same; the old one expires after `grace` seconds. Raises `BadRequest` or `NotFound`.

        Returns the id of the new key, and the key itself, which is not kept.
        """
        self._check_known(wanted)
        new = new_key()
        moment = datetime.fromtimestamp(time.time() + grace, UTC).isoformat(timespec="milliseconds")

        def replaced(entries: Entries) -> Entries:
            _, entry = _found(entries, wanted)
            return _with_expiry(entries, wanted, moment, is_earlier=True) | {hash_key(new): entry}

        await self._change(replaced)
        return key_id(hash_key(new)), new

    async def _change(self, change: Callable[[Entries], Entries]) -> None:
        try:
            await asyncio.to_thread(change_keys, self._file(), change)
        except KeysFileError as error:
            raise BadRequest(str(error)) from None
        except OSError as error:
            raise KeysFileUnwritable(f"the keys file cannot be written: {error.strerror}") from None
        self.reload()

    def _api_keys(self) -> DefaultAuthenticationProvider:
        if isinstance(self._provider, DefaultAuthenticationProvider):
            return self._provider
        if self._provider is None:
            raise BadRequest("this Server wants no keys: start it with --keys-file FILE to have some")
        raise BadRequest("this Server accepts tokens of another issuer, and has no keys of its own")

    def _file(self) -> Path:
        if (file := self._api_keys().file) is None:
            raise BadRequest(_NO_FILE.format(self._api_keys().options[1]))
        return file

    def _check_known(self, wanted: str) -> None:
        provider = self._api_keys()
        holder = next((each for each in provider.holders if each.credential == wanted), None)
        if holder is None:
            raise NotFound(f"there is no key {wanted!r}")
        if not provider.is_in_file(holder):
            raise BadRequest(
                f"{wanted} was given with {provider.options[0]}: start the Server without it, or with another"
            )
        self._file()


def _row(holder: Principal, *, fixed: bool) -> KeyRow:
    scope = holder.offices, holder.roles, holder.names
    offices, roles, names = (None if part is None else sorted(part) for part in scope)
    return KeyRow(
        holder.credential,
        holder.id,
        offices,
        roles,
        names,
        holder.expires,
        holder.device,
        holder.expired,
        fixed,
    )


def is_of_operator(entry: object) -> bool:
    """True for a valid entry of an admin key."""
    with suppress(KeysFileError):
        return read_entry(entry).is_operator
    return False


def _checked(entry: object) -> object:
    try:
        principal = read_entry(entry)
    except KeysFileError as error:
        raise BadRequest(str(error)) from None
    if principal.expired:
        raise BadRequest("expires: is over, give a later one")
    return entry


def _found(entries: Entries, wanted: str) -> tuple[str, object]:
    if (entry := entry_of(entries, wanted)) is None:
        raise KeysFileError(f"{wanted} is no longer in the keys file")
    return entry


def _with_expiry(entries: Entries, wanted: str, moment: str, *, is_earlier: bool = False) -> Entries:
    """Return the entries with a new expiry of one key; with `is_earlier`, one that expires before stays."""
    hashed, entry = _found(entries, wanted)
    known = read_entry(entry).expires
    if is_earlier and known is not None and known <= datetime.fromisoformat(moment).timestamp():
        return entries
    assert isinstance(entry, dict)
    return {**entries, hashed: {**entry, "expires": moment}}
