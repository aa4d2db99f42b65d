"""The identity of a device: its key pair, its fingerprint, how the key is proved, and which peer has which device."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, Literal, NamedTuple, TypeAlias

from a2c_smcp.devices.transcript import decoded, encoded, is_fingerprint, transcript
from a2c_smcp.errors import ConfigError, DeviceMismatch, NotPrivate
from a2c_smcp.files import (
    PrivateFileUnusable,
    PrivateJSONFile,
    check_private,
    default_folder,
    lock,
    private_folder,
    replace_file,
)
from a2c_smcp.installation import needs_extra

with needs_extra("devices", "The identity of a device"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


_PEERS = 256  # devices whose keys are kept ready


class Identity:
    """A key pair. The private key is in no `repr`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self.public)

    @classmethod
    def generate(cls) -> Identity:
        """A new one. Its fingerprint does not begin with `-`: a command would take it for an option."""
        while (new := cls(Ed25519PrivateKey.generate())).fingerprint.startswith("-"):
            pass
        return new

    @classmethod
    def from_private(cls, private: bytes) -> Identity:
        """Raises `ValueError` unless it has 32 bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(private))

    @property
    def private(self) -> bytes:
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def vouch_for(self, new: bytes) -> Voucher:
        """This identity says that the next one is `new`."""
        return Voucher(self.public, self.sign(transcript("rotate", self.public, new)))

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"


class Voucher(NamedTuple):
    """An old key, and its signature over T("rotate", old, new)."""

    key: bytes
    sig: bytes


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        _public_key(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(_PEERS)
def _public_key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


@lru_cache(_PEERS)
def fingerprint(public: bytes) -> str:
    """The thumbprint of the public key as a JSON Web Key (RFC 7638, RFC 8037), 43 characters."""
    x = base64.urlsafe_b64encode(public).rstrip(b"=").decode("ascii")
    jwk = f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'
    return base64.urlsafe_b64encode(hashlib.sha256(jwk.encode()).digest()).rstrip(b"=").decode("ascii")


def vouched(known: str, new: bytes, was: Sequence[Voucher]) -> bool:
    """True if `was`, newest first, leads from a new identity back to the one with the fingerprint `known`.

    A peer that was away during several rotations finds its own key further down.
    """
    current = new
    for old, signature in was:
        if not verify(old, signature, transcript("rotate", old, current)):
            raise DeviceMismatch("the signature by which an old key vouches for a new one is wrong")
        if fingerprint(old) == known:
            return True
        current = old
    return False


# Where the identity of a role is kept: in the keyring, or in a file that only its owner can read.
#
# Each role, computer or agent, has one identity per user of a machine. It is made on first use. Beside it, in the same
# file or keyring entry, are the signatures by which earlier keys vouch for it. A small file without secrets says where
# the key is, so that the keyring is asked only where one is kept there.

DeviceRole: TypeAlias = Literal["computer", "agent"]
ROLES: tuple[DeviceRole, ...] = ("computer", "agent")

_FOLDER = "devices"
_SERVICE = "a2c-smcp"
_LONGEST_CHAIN = 16
_KEYRING_TIMEOUT = 15.0  # it may be asking its owner to unlock it
_LOCK_LIMIT, _LOCK_PAUSE = 20.0, 0.02


class StoredIdentity(NamedTuple):
    identity: Identity
    was: tuple[Voucher, ...]
    """Vouchers of earlier keys for this one, newest first."""
    kept: Literal["keyring", "file"]
    place: str
    """The file, or the entry of the keyring."""

    @property
    def copying(self) -> str:
        """A sentence that says if the private key can be copied."""
        if self.kept == "keyring":
            return "programs of your account can copy it once the keyring is unlocked"
        return "all who can read that file, as your account, root or a backup can, can copy it"


class IdentityStore:
    """The identity of one role. `use_keyring=False` keeps new ones in a file."""

    def __init__(self, role: DeviceRole, folder: Path | None = None, *, use_keyring: bool = True) -> None:
        self._role, self._folder = role, folder or default_folder()
        self._use_keyring = use_keyring
        self._entry = f"device {role}"

    @property
    def _file(self) -> Path:
        return self._folder / _FOLDER / f"{self._role}.key"

    @property
    def _marker(self) -> Path:
        return self._folder / _FOLDER / f"{self._role}.json"

    def load(self) -> StoredIdentity | None:
        """`None` if none was made yet. Raises `ConfigError` if it cannot be read, `NotPrivate` if others could."""
        kept = self._kept()
        if kept is None:
            return None
        text = self._from_keyring() if kept == "keyring" else self._from_file()
        identity, was = _read(text, self._place(kept))
        return StoredIdentity(identity, was, kept, self._place(kept))

    def load_or_make(self) -> StoredIdentity:
        """As `load`; makes the identity on first use. Raises `ConfigError` also if it cannot be kept."""
        if found := self.load():
            return found
        with exclusive(self._folder):
            return self.load() or self._save(Identity.generate(), ())

    def rotate(self) -> StoredIdentity:
        """Make a new identity that the present one vouches for. The old private key is gone afterwards."""
        with exclusive(self._folder):
            old = self.load()
            if old is None:
                return self._save(Identity.generate(), ())
            new = Identity.generate()
            return self._save(new, (old.identity.vouch_for(new.public), *old.was)[:_LONGEST_CHAIN])

    def _save(self, identity: Identity, was: tuple[Voucher, ...]) -> StoredIdentity:
        text = json.dumps(
            {
                "private": encoded(identity.private),
                "was": [{"key": encoded(old), "sig": encoded(signature)} for old, signature in was],
            }
        )
        kept: Literal["keyring", "file"] = "keyring" if self._use_keyring and self._to_keyring(text) else "file"
        try:
            if kept == "file":
                replace_file(self._file, text.encode())
            replace_file(self._marker, json.dumps({"kept": kept, "fingerprint": identity.fingerprint}).encode())
            if kept == "keyring":
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the key of this device cannot be kept in {self._file.parent}: {error.strerror}"
            ) from None
        return StoredIdentity(identity, was, kept, self._place(kept))

    def _place(self, kept: str) -> str:
        return f"service {_SERVICE!r}, user {self._entry!r}" if kept == "keyring" else str(self._file)

    def _kept(self) -> Literal["keyring", "file"] | None:
        check_private(self._folder, self._marker.parent, self._marker)
        try:
            marker = json.loads(self._marker.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self._marker}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            marker = None
        kept = marker.get("kept") if isinstance(marker, dict) else None
        if kept not in ("keyring", "file"):
            raise ConfigError(f"{self._marker}: not a record of where a key is kept: correct or delete it")
        return "keyring" if kept == "keyring" else "file"

    def _from_file(self) -> str:
        check_private(self._file)
        try:
            if os.name == "posix" and self._file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise NotPrivate(
                    f"{self._file} could be read by others on this machine, and is not used; "
                    f"run: chmod 600 {self._file} && a2c-smcp device rotate {self._role}"
                )
            return self._file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._file}: cannot be read: {error}") from None

    def _from_keyring(self) -> str:
        found = _ask_keyring(lambda keyring: keyring.get_password(_SERVICE, self._entry))
        if not isinstance(found, str):
            raise ConfigError(
                f"the key of this device is not in the keyring ({self._place('keyring')}): unlock it, or make another "
                f"key: delete {self._marker} and pair this device again"
            )
        return found

    def _to_keyring(self, text: str) -> bool:
        """It is read back: a keyring that is switched off takes everything, and keeps nothing."""

        def keep(keyring: Any) -> bool:
            keyring.set_password(_SERVICE, self._entry, text)
            return bool(keyring.get_password(_SERVICE, self._entry) == text)

        return _ask_keyring(keep) is True


def _read(text: str, place: str) -> tuple[Identity, tuple[Voucher, ...]]:
    try:
        kept = json.loads(text)
        private = decoded(kept["private"], "the key", 32)
        was = [Voucher(decoded(old["key"], "a key", 32), decoded(old["sig"], "a sig", 64)) for old in kept["was"]]
        return Identity.from_private(private), tuple(was)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DeviceMismatch):
        raise ConfigError(f"{place}: not the key of a device: delete it, and pair this device again") from None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One process at a time changes what is known of devices. Raises `ConfigError` if nothing can be kept here."""
    try:
        descriptor = os.open(private_folder(folder, _FOLDER) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"nothing can be kept in {folder / _FOLDER}: {error.strerror}") from None
    try:
        deadline = time.monotonic() + _LOCK_LIMIT
        while not lock(descriptor):
            if time.monotonic() > deadline:
                raise ConfigError(f"another program has held {folder / _FOLDER / 'lock'} for {_LOCK_LIMIT:g} s")
            time.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _ask_keyring(question: Callable[[Any], object]) -> object:
    """`None` if there is no keyring, it fails, or does not answer in time."""
    answers: list[object] = []

    def ask() -> None:
        try:
            import keyring

            answers.append(question(keyring))
        except Exception:  # backends are plug-ins, and raise anything
            answers.append(None)

    thread = Thread(target=ask, name="a2c-keyring", daemon=True)
    thread.start()
    thread.join(_KEYRING_TIMEOUT)
    return answers[0] if answers else None


# The proof, in a CONNECT, that a client has the private key of the device that its token is bound to (WIRE §10).
#
# `auth.device = {key, at, sig}`, sig over T("connect", origin, Engine.IO sid, at, SHA-256(token)). `at` is in whole
# seconds since 1970, in the transcript as decimal digits. The Server compares with origins from its own configuration:
# a proof that a client made for another Server is of no use here. The sid was given by this Server, to this session.

CLOCK_TOLERANCE = 600
"""Seconds by which the clocks of a client and a Server may differ."""

_PROOF_FIELDS = {"key", "at", "sig"}
_LATEST_PROOF = 2**53


class ClockDiffers(DeviceMismatch):
    """The proof is right, its time is not."""


def make_proof(identity: Identity, *, origin: str, sid: str, at: int, token: str) -> dict[str, Any]:
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
    sig = identity.sign(_proof_message(origin, sid, at, digest))
    return {"key": encoded(identity.public), "at": at, "sig": encoded(sig)}


def check_proof(
    proof: object, *, device: str, origins: Iterable[str], sid: str, now: float, token_digests: Iterable[bytes]
) -> None:
    """Raises `DeviceMismatch` unless this device (a fingerprint) made the proof, now, for this session."""
    if not isinstance(proof, Mapping):
        raise DeviceMismatch("this key is bound to a device, and the client proved none")
    at = proof.get("at")
    if set(proof) != _PROOF_FIELDS or type(at) is not int or not 0 <= at < _LATEST_PROOF:
        raise DeviceMismatch("auth.device is malformed")
    key, sig = decoded(proof["key"], "auth.device.key", 32), decoded(proof["sig"], "auth.device.sig", 64)
    if fingerprint(key) != device:
        raise DeviceMismatch("this key is bound to another device")
    digests = list(token_digests)
    if not any(verify(key, sig, _proof_message(origin, sid, at, token)) for origin in origins for token in digests):
        raise DeviceMismatch("the proof of this device is for another session, origin or token")
    if abs(at - now) > CLOCK_TOLERANCE:
        raise ClockDiffers("the clocks of this device and of the Server differ by more than ten minutes")


def _proof_message(origin: str, sid: str, at: int, token_digest: bytes) -> bytes:
    return transcript("connect", origin, sid, str(at), token_digest)


# Which device each peer is known by: (origin, office, role, name) → fingerprint, in a private file.
#
# A peer is trusted beforehand (`trust`), or on first use where that is allowed. Afterwards another identity is refused,
# unless the known one vouches for it. Several processes may use the file: it is read again when it has changed.

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
