"""A keyring as good as any other, whose values are in a file: `PYTHON_KEYRING_BACKEND=paper_keyring.PaperKeyring`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError


class PaperKeyring(KeyringBackend):
    priority = 1  # type: ignore[assignment]  # a class property there

    def get_password(self, service: str, username: str) -> str | None:
        return self._held().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._hold({**self._held(), f"{service}/{username}": password})

    def delete_password(self, service: str, username: str) -> None:
        held = self._held()
        if held.pop(f"{service}/{username}", None) is None:
            raise PasswordDeleteError(username)
        self._hold(held)

    def _held(self) -> dict[str, str]:
        held: dict[str, str] = json.loads(self._file().read_text("utf-8")) if self._file().exists() else {}
        return held

    def _hold(self, held: dict[str, str]) -> None:
        self._file().write_text(json.dumps(held), "utf-8")

    def _file(self) -> Path:
        return Path(os.environ["PAPER_KEYRING"])
