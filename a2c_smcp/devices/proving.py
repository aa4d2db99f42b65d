"""Proving this device in a CONNECT, where a key is bound to it (WIRE §10).

A client that was given an identity proves it with each CONNECT. Others do so once a Server has said that their key is
bound to a device: then the identity that this machine keeps is read, and a note is kept that this Server wants it, so
that the next process need not be refused first. Without that nothing is read, made or signed, and no cryptography is
imported.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from a2c_smcp.errors import ConfigError, NotAuthenticated
from a2c_smcp.files import default_folder

if TYPE_CHECKING:
    from pathlib import Path

    from a2c_smcp.devices.identity import DeviceRole, Identity

_LATEST = 2**53  # seconds since 1970 in a proof


class Prover:
    """Makes the proofs of one client. `load` is called in a thread: a keyring may be asking its owner.

    It remembers, across dials, whether the Server wants proofs, and by how much its clock differs.
    """

    def __init__(
        self,
        load: Callable[[], Identity],
        *,
        given: Identity | None = None,
        is_wanted: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._load = load
        self._given = self._identity = given
        self._is_wanted = is_wanted or given is not None
        self._ahead = 0.0  # seconds that the clock of the Server is ahead of ours
        self._clock = clock

    @classmethod
    def of(cls, role: DeviceRole, url: str, identity: Identity | None = None, folder: Path | None = None) -> Prover:
        """Proves this identity to the Server at a URL; without one, that of this machine, where it is wanted."""
        folder = folder or default_folder()
        note = folder / "devices" / f"wanted-{role}-{hashlib.sha256(url.encode()).hexdigest()[:32]}"
        return cls(partial(_stored, role, folder, note), given=identity, is_wanted=note.exists())

    async def prove(
        self, auth: Mapping[str, Any] | None, token: str, *, origin: str, sid: str
    ) -> dict[str, Any] | None:
        """The `auth` of a CONNECT with the proof in it, if one is wanted. Raises `ConfigError`."""
        if not (self._is_wanted and token):
            return None if auth is None else dict(auth)
        try:
            from a2c_smcp.devices.identity import make_proof
        except ModuleNotFoundError as error:
            raise ConfigError(f"this key is bound to a device: {error}") from None
        if self._identity is None:
            self._identity = await asyncio.to_thread(self._load)
        at = int(self._clock() + self._ahead)
        return {**(auth or {}), "device": make_proof(self._identity, origin=origin, sid=sid, at=at, token=token)}

    def learns_from(self, refusal: NotAuthenticated) -> bool:
        """True if another CONNECT may succeed: with a proof, the key read again, or the Server's clock."""
        now, is_bound = refusal.details.get("now"), refusal.details.get("device") is True
        if self._is_wanted and isinstance(now, int | float) and not isinstance(now, bool) and 0 <= now < _LATEST:
            self._ahead = now - self._clock()
            return True
        if not is_bound or self._given:
            return False
        may_have_changed = self._identity is not None
        if may_have_changed or not self._is_wanted:
            self._identity, self._is_wanted = None, True
            return True
        return False


def _stored(role: DeviceRole, folder: Path, note: Path) -> Identity:
    from a2c_smcp.devices.identity import IdentityStore

    found = IdentityStore(role, folder).load_or_make().identity
    with suppress(OSError):
        note.touch(mode=0o600)
    return found
