"""Values that are kept on disk: a JSON object by input id that only its owner can read. Secrets never get here."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from a2c_smcp.computer.inputs.errors import StoreUnreadable
from a2c_smcp.computer.private_files import remedy_for

__all__ = ["Store"]


class Store:
    """A file that is replaced as a whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Any]:
        if remedy := remedy_for(self._path):
            raise StoreUnreadable(f"{self._path}: can be changed by others on this machine; run: {remedy}")
        try:
            values = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreUnreadable(f"{self._path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise StoreUnreadable(f"{self._path}: not a JSON object of input values: correct or delete it") from None
        if not isinstance(values, dict):
            raise StoreUnreadable(f"{self._path}: not a JSON object of input values: correct or delete it")
        return values

    def save(self, values: Mapping[str, Any]) -> None:
        try:
            self._replace(json.dumps(dict(values), indent=2).encode())
        except OSError as error:
            raise StoreUnreadable(f"{self._path}: cannot be written: {error.strerror}") from None

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")  # 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
