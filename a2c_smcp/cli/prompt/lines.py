"""The lines that were typed before, in a file for their owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

__all__ = ["Lines"]

_LOADED = 1000


class Lines(History):
    """A line is kept when its command is done: only then it is known what in it is a secret. Answers never are."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def append_string(self, string: str) -> None:
        """What the editor has just read is not taken yet."""

    def remember(self, line: str) -> None:
        if self.recall(line):
            self.store_string(line)

    def recall(self, line: str) -> bool:
        """A line that meant nothing can be brought back and corrected, and is not kept. Whether it is another one."""
        is_new = [line] != self._loaded_strings[:1]
        if is_new:
            self._loaded_strings.insert(0, line)
        return is_new

    def load_history_strings(self) -> Iterable[str]:
        try:
            return self._path.read_text("utf-8").splitlines()[: -_LOADED - 1 : -1]
        except (OSError, UnicodeDecodeError):
            return []

    def store_string(self, string: str) -> None:
        """Where nothing can be kept, the lines last as long as the process."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{string}\n")
