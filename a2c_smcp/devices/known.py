"""Which device each peer is known by: (origin, office, role, name) → fingerprint, in a private file.

A peer is trusted beforehand (`trust`), or on first use where that is allowed. Afterwards another identity is refused,
unless the known one vouches for it. Several processes may use the file: it is read again when it has changed.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.devices.identity import DeviceRole, Voucher, exclusive, fingerprint, vouched
from a2c_smcp.devices.transcript import is_fingerprint
from a2c_smcp.errors import ConfigError, DeviceMismatch
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, default_folder

FIRST_USE, SIGNED, TRUSTED = "first use", "signed", "trusted"
_MOST_MET = 1000
"""Peers of one role in one office that are accepted on first use: names cost whoever invents them nothing."""


class KnownPeer(NamedTuple):
    """A member of an office at a Server. `origin` is that of the Server, such as `https://hub.example.com`."""

    origin: str
    office: str
    role: DeviceRole
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name!r} in office {self.office!r} at {self.origin}"

    @property
    def options(self) -> str:
        """The options of the command line that name this peer."""
        words = [self.role, self.name, "--office", self.office, "--url", self.origin]
        return shlex.join(words)

    @property
    def remedy(self) -> str:
        """The beginning of a remedy: a computer does not know an agent, and says so to the agent."""
        return "run on the computer" if self.role == "agent" else "run"


class KnownDevice(NamedTuple):
    peer: KnownPeer
    fingerprint: str
    how: str
    """`trusted` by a person, or seen on `first use`; `signed`: by signed answers only, it was never seen to seal.

    It stays so when this key vouches for the next one.
    """


class KnownDevices:
    """Raises `ConfigError` where the file cannot be used: what cannot be checked is not trusted."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_folder()
        self._path = self._folder / "devices" / "known.json"
        self._name = str(self._path)
        self._stamp: tuple[int, int, int] | None = None
        self._devices: dict[KnownPeer, KnownDevice] = {}

    def get(self, peer: KnownPeer) -> KnownDevice | None:
        self._load()
        return self._devices.get(peer)

    def __iter__(self) -> Iterator[KnownDevice]:
        self._load()
        return iter(list(self._devices.values()))

    def check(
        self,
        peer: KnownPeer,
        public: bytes,
        was: Sequence[Voucher] = (),
        *,
        first_use: bool = False,
        given: bool = False,
        signed: bool = False,
    ) -> None:
        """Accept this identity of a peer, or raise `DeviceMismatch`, which says what to do.

        `first_use` accepts, and keeps, the first identity of a peer that is not known yet. `given` accepts only those
        that a person has trusted, and what they vouch for. `signed`: it has signed an answer, which says nothing on
        whether it seals.
        """
        self._load()
        known, found = self._devices.get(peer), fingerprint(public)
        if known and given and known.how != TRUSTED:
            known = None
        if known is None and not (first_use and self._has_room(peer)):
            raise _not_known(peer, found)
        if known and known.fingerprint != found and not vouched(known.fingerprint, public, was):
            raise _is_another(known, found)
        device = KnownDevice(peer, found, _how(known, SIGNED if signed else FIRST_USE))
        if device != known:
            self._keep(device, instead_of=known)

    def _has_room(self, peer: KnownPeer) -> bool:
        met = (known for known in self._devices.values() if known.how != TRUSTED)
        return sum(each.peer[:3] == peer[:3] for each in met) < _MOST_MET

    def trust(self, peer: KnownPeer, fingerprint: str) -> None:
        """From now on this peer is the device with this fingerprint, whatever it was before."""
        if not is_fingerprint(fingerprint):
            raise ConfigError(f"{fingerprint!r} is not a fingerprint: it has 43 letters, digits, - and _")
        with exclusive(self._folder):
            self._load()
            self._save({**self._devices, peer: KnownDevice(peer, fingerprint, TRUSTED)})

    def forget(self, peer: KnownPeer) -> bool:
        """True if it was known."""
        with exclusive(self._folder):
            self._load()
            if peer not in self._devices:
                return False
            self._save({known: device for known, device in self._devices.items() if known != peer})
            return True

    def _keep(self, device: KnownDevice, *, instead_of: KnownDevice | None) -> None:
        with exclusive(self._folder):
            self._load()
            now = self._devices.get(device.peer)
            if now == instead_of:
                self._save({**self._devices, device.peer: device})
            elif now is None or now.fingerprint != device.fingerprint:
                raise DeviceMismatch(f"{device.peer}: another program has just met it with another identity; try again")

    def _load(self) -> None:
        try:
            found = os.stat(self._name)  # noqa: PTH116, for each request: quicker than that of a path
            stamp = found.st_mtime_ns, found.st_ino, found.st_size
        except FileNotFoundError:
            self._stamp, self._devices = None, {}
            return
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror}") from None
        if stamp == self._stamp:
            return
        try:
            entries = PrivateJSONFile(self._path).load()
            devices = [_device(entry) for entry in entries["devices"]]
        except PrivateFileUnusable as error:
            raise ConfigError(str(error)) from None
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{self._path}: not a list of known devices: correct or delete it") from None
        self._stamp, self._devices = stamp, {device.peer: device for device in devices}

    def _save(self, devices: dict[KnownPeer, KnownDevice]) -> None:
        entries = [
            {**device.peer._asdict(), "fingerprint": device.fingerprint, "how": device.how}
            for device in devices.values()
        ]
        try:
            PrivateJSONFile(self._path).save({"devices": entries})
        except PrivateFileUnusable as error:
            raise ConfigError(str(error)) from None
        self._stamp = None
        self._load()


def _how(known: KnownDevice | None, seen: str) -> str:
    return known.how if known and known.how != SIGNED else seen


def _not_known(peer: KnownPeer, found: str) -> DeviceMismatch:
    return DeviceMismatch(
        f"{peer} is not known: compare {found} with the fingerprint that `a2c-smcp device` shows there, "
        f"then {peer.remedy}: a2c-smcp device trust {found} {peer.options}",
        fingerprint=found,
    )


def _is_another(known: KnownDevice, found: str) -> DeviceMismatch:
    return DeviceMismatch(
        f"{known.peer} is known as {known.fingerprint} and is now {found}: another device uses its name, or it has a "
        f"new key that the old one does not vouch for. If you know why, {known.peer.remedy}: "
        f"a2c-smcp device forget {known.peer.options}",
        fingerprint=found,
        known=known.fingerprint,
    )


def _device(entry: dict[str, Any]) -> KnownDevice:
    peer = KnownPeer(entry["origin"], entry["office"], entry["role"], entry["name"])
    device = KnownDevice(peer, entry["fingerprint"], entry["how"])
    if not all(isinstance(text, str) for text in (*peer, device.how)) or not is_fingerprint(device.fingerprint):
        raise ValueError(json.dumps(entry))
    return device
