"""What is kept of MCP sessions on disk, so that they outlive the process that began them.

A session of an older revision consists of little: what the client said in its handshake, the log level that it wants,
and the resources that it has subscribed to. Each has a file of its own, named by a digest of its id. Only as many as
`most` are kept, those that were used last, and none for longer than a week after its last change or return.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from a2c_smcp.errors import NotPrivate
from a2c_smcp.private_files import check_private, replace_file

__all__ = ["KeptSession", "SessionFiles"]

logger = logging.getLogger(__name__)

_KEPT_FOR = 7 * 24 * 3600.0
_LARGEST = 256 * 1024
"""Characters of a file: a client that says more than that has a session that ends with the process."""


@dataclass(frozen=True, slots=True)
class KeptSession:
    """The params of its `initialize` and of its `logging/setLevel`, and the URIs that it has subscribed to."""

    initialize: Mapping[str, Any]
    level: Mapping[str, Any] | None = None
    subscriptions: tuple[str, ...] = ()

    def after(self, method: str, params: Mapping[str, Any]) -> KeptSession:
        """What is to be kept after another request of the client."""
        uri = params.get("uri")
        if method == "logging/setLevel":
            return replace(self, level=params)
        if not isinstance(uri, str) or method not in ("resources/subscribe", "resources/unsubscribe"):
            return self
        others = tuple(each for each in self.subscriptions if each != uri)
        return replace(self, subscriptions=(*others, uri) if method == "resources/subscribe" else others)


class SessionFiles:
    """The files of a folder, which is made when the first one is. What goes wrong is logged once, and not raised."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._seen: dict[str, float] = {}
        self._has_warned = False
        with suppress(OSError):
            found = [(path.stat().st_mtime, path.stem) for path in folder.glob("*.json")]
            self._seen = {name: seen for seen, name in sorted(found)}
        self._make_room()

    def keep(self, session: str, kept: KeptSession) -> None:
        name, text = _name(session), json.dumps(asdict(kept))
        if len(text) > _LARGEST:
            self.drop(session)
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(self._folder)
            replace_file(self._path(name), text.encode())
        except (OSError, NotPrivate) as error:
            self._warn(error)
            return
        self._use(name)
        self._make_room()

    def find(self, session: str) -> KeptSession | None:
        """What is kept of a session, also by another process."""
        try:
            check_private(self._folder)
            found = json.loads(self._path(_name(session)).read_text("utf-8"))
            kept = KeptSession(**found)
        except (OSError, NotPrivate, ValueError, TypeError):
            return None
        return kept if _is_valid(kept) else None

    def returned(self, session: str) -> None:
        """It was begun again: a week from now on."""
        name = _name(session)
        with suppress(OSError):
            self._path(name).touch()
            self._use(name)

    def drop(self, session: str) -> None:
        self._remove(_name(session))

    def _use(self, name: str) -> None:
        self._seen.pop(name, None)
        self._seen[name] = time.time()

    def _make_room(self) -> None:
        """Remove the files that were not used for longest."""
        oldest = time.time() - _KEPT_FOR
        for name, seen in [*self._seen.items()]:
            if seen >= oldest and len(self._seen) <= self._most:
                return
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._seen.pop(name, None)
        with suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _warn(self, error: OSError | NotPrivate) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = error.about if isinstance(error, NotPrivate) else error.strerror
            logger.warning("sessions of MCP clients end with this process: %s: %s", self._folder, text)


def _name(session: str) -> str:
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_valid(kept: KeptSession) -> bool:
    uris = kept.subscriptions
    is_level = kept.level is None or isinstance(kept.level, Mapping)
    return isinstance(kept.initialize, Mapping) and is_level and all(isinstance(uri, str) for uri in uris)
