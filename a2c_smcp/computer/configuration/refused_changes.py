"""Changes of configuration files that their owner has not agreed to, kept so that a restart does not apply them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.inputs.errors import StoreUnreadable
from a2c_smcp.computer.inputs.store import Store
from a2c_smcp.computer.instance import default_folder
from a2c_smcp.mcp_host.config.servers import source

__all__ = ["RefusedChanges"]

logger = logging.getLogger(__name__)


class RefusedChanges:
    """Of one set of files. What is kept is a digest of their meaning, and lines for the owner without secrets."""

    def __init__(self, files: Iterable[Path], folder: Path | None = None) -> None:
        # links are not followed: a file that is replaced by a link to another is the same file to its owner
        names = "\0".join(sorted(os.path.abspath(path) for path in files))  # noqa: PTH100
        digest = hashlib.sha256(os.fsencode(names)).hexdigest()[:32]
        self._store = Store((folder or default_folder()) / "changes" / f"{digest}.json")

    def note(self, configuration: Configuration, lines: Sequence[str]) -> None:
        """From now on, a start with this configuration needs a yes; an earlier one does not any more."""
        self._save({"configuration": _digest(configuration), "lines": [*lines]})

    def clear(self) -> None:
        """What the files say now is agreed to."""
        if self._load():
            self._save({})

    def lines_of(self, configuration: Configuration) -> list[str]:
        """What was not agreed to in this configuration; nothing if it is another one."""
        kept = self._load()
        return [*map(str, kept["lines"])] if kept.get("configuration") == _digest(configuration) else []

    def _load(self) -> dict[str, Any]:
        try:
            kept = self._store.load()
        except StoreUnreadable as error:
            logger.warning("%s", error)
            return {}
        return kept if isinstance(kept.get("lines"), list) else {}

    def _save(self, kept: dict[str, object]) -> None:
        try:
            self._store.save(kept)
        except StoreUnreadable as error:
            logger.warning("a refused change is forgotten when this program ends: %s", error)


def _digest(configuration: Configuration) -> str:
    """The same for files that mean the same, however they are written."""
    servers = {name: source(each) for name, each in configuration.servers.items()}
    inputs = {id_: each.model_dump(mode="json") for id_, each in configuration.inputs.items()}
    return hashlib.sha256(json.dumps([servers, inputs], sort_keys=True).encode()).hexdigest()
