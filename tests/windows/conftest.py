"""Windows' own Python under Wine, which `make test-windows` sets up, and programs in it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from tests.stage.program import Program

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".cache" / "windows"
DRIVE_C = PLACE / "windows" / "drive_c"
CODE_PAGE = "cp1252"
"""What a program prints into a pipe, as on the Windows of most of Europe."""
_OURS = ("A2C_", "PYTHON", "WINE", "XDG_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests need what `make test-windows` installs; a run of everything else leaves them out."""
    if not (PLACE / ".ready").exists():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="make test-windows sets up what this needs"))


def on_windows(path: Path) -> str:
    """The path as a program under Wine knows it."""
    return "Z:" + str(path.absolute()).replace("/", "\\")


def from_windows(path: str) -> Path:
    """The path that a program under Wine calls this."""
    drive, _, rest = path.strip().replace("\\", "/").partition(":/")
    return (DRIVE_C if drive.upper() == "C" else Path("/")) / rest


def windows_processes(words: str) -> list[int]:
    """Ids of the processes with these words in their command line, by the table of Linux."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if "python.exe" in (line := entry.read_bytes().decode("utf-8", "replace")) and words in line:
                found.append(int(entry.parent.name))
    return sorted(found)


def is_clean(said: str) -> bool:
    """True if nothing unexpected is told. Sockets of Wine are sometimes busy for a moment, when a signal arrives."""
    return "Traceback" not in re.sub(r"signal wakeup fd:\s*Traceback", "", said)


PYTHON = on_windows(PLACE / "python" / "python.exe")


def surroundings(**variables: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    wine = {"WINEPREFIX": str(PLACE / "windows"), "WINEDEBUG": "-all", "DISPLAY": "", "NO_COLOR": "1", "COLUMNS": "500"}
    return {**known, **wine, **variables}


class OnWindows:
    """Starts programs in one folder, which is their state folder, too."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack, self.folder = stack, folder

    async def start(self, *words: str | Path, stdin: int = DEVNULL, **variables: str) -> Program:
        """`python WORD…`."""
        shown = [on_windows(word) if isinstance(word, Path) else word for word in words]
        process = await asyncio.create_subprocess_exec(
            *("wine", PYTHON, *shown),
            cwd=self.folder,
            env=surroundings(**{"XDG_STATE_HOME": on_windows(self.folder / "state"), **variables}),
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
            limit=1 << 26,
        )
        program = Program(process, CODE_PAGE)
        self._stack.push_async_callback(program.kill)
        return program

    async def a2c(self, *words: str | Path, **variables: str) -> Program:
        """`a2c-smcp WORD…`."""
        return await self.start("-m", "a2c_smcp", *words, **variables)


@pytest.fixture
def app_data() -> Iterator[Path]:
    """What %APPDATA% names, without the settings of Claude Desktop."""
    (folder,) = DRIVE_C.glob("users/*/AppData/Roaming")
    shutil.rmtree(folder / "Claude", ignore_errors=True)
    yield folder
    shutil.rmtree(folder / "Claude", ignore_errors=True)


@pytest.fixture
async def windows(tmp_path: Path) -> AsyncIterator[OnWindows]:
    folder = tmp_path / "a folder with spaces and an ümlaut"
    folder.mkdir()
    async with AsyncExitStack() as stack:
        yield OnWindows(stack, folder)
