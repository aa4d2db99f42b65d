"""What is on disk, for tests that wait for other things meanwhile."""

from __future__ import annotations

import asyncio
import resource
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

__all__ = ["below", "content_of", "full_disk", "mode_of", "names_in", "waiting_process"]


def content_of(path: str | Path) -> bytes:
    return Path(path).read_bytes()


def mode_of(path: str | Path) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def below(folder: Path, *, but: Path) -> set[Path]:
    """Everything below a folder, except another one with all that is in it."""
    return {path for path in folder.rglob("*") if path != but and but not in path.parents}


@asynccontextmanager
async def waiting_process(code: str, folder: Path) -> AsyncIterator[None]:
    """A process that runs this code for a `folder`, and then waits; it is killed at the end of the block."""
    code = f"import sys, time, pathlib; folder = pathlib.Path(sys.argv[1])\n{code}\nprint(flush=True); time.sleep(600)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(folder), stdout=-1)
    assert process.stdout
    assert await process.stdout.readline()
    yield
    process.kill()
    await process.communicate()


@contextmanager
def full_disk(at: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
