"""Where the tokens of a server are kept: in the keyring, or in a file that only its owner can read.

Beside them there is a small file without secrets, the *marker*, for each server with a sign-in. It is
replaced whenever the tokens change. A running computer sees by it that another process has signed in or out, and a
computer without one never asks the keyring, which may ask its owner to unlock it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from a2c_smcp.computer.inputs.sources import Keychain
from a2c_smcp.errors import NotPrivate
from a2c_smcp.private_files import check_private, lock, private_folder, replace_file

__all__ = ["ServerTokens"]

logger = logging.getLogger(__name__)

_FOLDER = "sign-in"
_LOCK_LIMIT, _LOCK_PAUSE = 20.0, 0.05  # seconds; a refresh takes less

_Stamp: TypeAlias = tuple[int, int]


class ServerTokens:
    """The tokens of one server at one URL. If nothing can be kept on this machine, they last as long as the process."""

    def __init__(self, folder: Path, server: str, url: str, keychain: Keychain) -> None:
        digest = hashlib.sha256(f"{server}\0{url}".encode()).hexdigest()[:32]
        self._state_folder, self._server = folder, server
        self._marker = folder / _FOLDER / f"{digest}.json"
        self._file = folder / _FOLDER / f"{digest}.tokens"
        self._lock = folder / _FOLDER / f"{digest}.lock"
        self._keychain, self._key = keychain, f"sign-in {digest}"
        self._stamp: _Stamp | None = None

    async def load(self) -> str | None:
        self._stamp = self._stamp_now()
        kept = self._kept()
        if kept == "keyring":
            return await self._keychain.get(self._key)
        return await asyncio.to_thread(self._read) if kept == "file" else None

    async def save(self, text: str) -> None:
        is_in_keyring = await self._keychain.set(self._key, text)
        try:
            await asyncio.to_thread(self._write, None if is_in_keyring else text)
        except (OSError, NotPrivate) as error:
            said = error.strerror if isinstance(error, OSError) else error.about
            logger.warning("%s: you are signed in until this program ends: %s", self._server, said)
        self._stamp = self._stamp_now()

    async def delete(self) -> None:
        if self._kept() == "keyring":
            await self._keychain.delete(self._key)
        for path in (self._file, self._marker):
            with suppress(OSError):
                path.unlink()
        self._stamp = self._stamp_now()

    def has_changed(self) -> bool:
        return self._stamp_now() != self._stamp

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        try:
            private_folder(self._state_folder, _FOLDER)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        except (OSError, NotPrivate):
            yield
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOCK_LIMIT):
                    while not lock(descriptor):  # noqa: ASYNC110  # other processes tell nothing
                        await asyncio.sleep(_LOCK_PAUSE)
            yield
        finally:
            os.close(descriptor)

    def _stamp_now(self) -> _Stamp | None:
        try:
            found = self._marker.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _kept(self) -> str | None:
        """Where the marker says that the tokens are."""
        try:
            check_private(self._marker.parent, self._marker)
            marker = json.loads(self._marker.read_text("utf-8"))
        except NotPrivate as error:
            logger.warning("%s: nobody is signed in: %s", self._server, error.about)
            return None
        except (OSError, ValueError):
            return None
        return str(marker.get("kept")) if isinstance(marker, dict) else None

    def _read(self) -> str | None:
        try:
            check_private(self._file)
            if os.name == "posix" and self._file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                logger.warning("%s: others on this machine could read %s; sign in again", self._server, self._file)
                self._file.chmod(0o600)
            return self._file.read_text("utf-8")
        except NotPrivate as error:
            logger.warning("%s: nobody is signed in: %s", self._server, error.about)
        except (OSError, ValueError):
            pass
        return None

    def _write(self, text: str | None) -> None:
        """Write the tokens, unless they are in the keyring, then the marker."""
        private_folder(self._state_folder, _FOLDER)
        if text is None:
            self._file.unlink(missing_ok=True)
        else:
            replace_file(self._file, text.encode())
        marker = {"server": self._server, "kept": "keyring" if text is None else "file", "id": secrets.token_hex(8)}
        replace_file(self._marker, json.dumps(marker).encode())
