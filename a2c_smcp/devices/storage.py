"""Where the identity of a role is kept: in the keyring, or in a file that only its owner can read.

Each role, computer or agent, has one identity per user of a machine. It is made on first use. Beside it, in the same
file or keyring entry, are the signatures by which earlier keys vouch for it. A small file without secrets says where
the key is, so that the keyring is asked only where one is kept there.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Literal, NamedTuple, TypeAlias

from a2c_smcp.devices.identity import Identity, Voucher
from a2c_smcp.devices.transcript import decoded, encoded
from a2c_smcp.errors import ConfigError, DeviceMismatch, NotPrivate
from a2c_smcp.private_files import check_private, default_folder, lock, private_folder, replace_file

__all__ = ["ROLES", "DeviceRole", "IdentityStore", "StoredIdentity", "exclusive"]

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
    """How earlier keys vouch for this one, newest first."""
    kept: Literal["keyring", "file"]
    place: str
    """The file, or the entry of the keyring."""

    @property
    def copying(self) -> str:
        """Whether the private key can be copied, in a sentence."""
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
