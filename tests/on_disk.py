"""What is on disk, for tests that wait for other things meanwhile."""

from __future__ import annotations

import stat
from pathlib import Path

__all__ = ["below", "content_of", "mode_of", "names_in"]


def content_of(path: str | Path) -> bytes:
    return Path(path).read_bytes()


def mode_of(path: str | Path) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def below(folder: Path, *, but: Path) -> set[Path]:
    """Everything below a folder, except another one with all that is in it."""
    return {path for path in folder.rglob("*") if path != but and but not in path.parents}
