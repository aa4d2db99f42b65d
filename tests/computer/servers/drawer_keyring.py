"""A keyring that keeps what it is given, in a file: `PYTHON_KEYRING_BACKEND=drawer_keyring.DrawerKeyring`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend


class DrawerKeyring(KeyringBackend):
    priority = 1  # type: ignore[assignment]  # a class property there

    def get_password(self, service: str, username: str) -> str | None:
        return self._held().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        held = {**self._held(), f"{service}/{username}": password}
        self._file().write_text(json.dumps(held), "utf-8")

    def delete_password(self, service: str, username: str) -> None:
        raise NotImplementedError

    def _held(self) -> dict[str, str]:
        held: dict[str, str] = json.loads(self._file().read_text("utf-8")) if self._file().exists() else {}
        return held

    def _file(self) -> Path:
        return Path(os.environ["DRAWER_KEYRING"])
