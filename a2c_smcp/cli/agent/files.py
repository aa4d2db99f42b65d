"""Files on the command line: `a2c-smcp agent put`, and what `agent call --save` writes. Binary is never printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from a2c_smcp.agent.blobs.files import write_file
from a2c_smcp.cli.agent.run import OfficeContext
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.progress import spinning
from a2c_smcp.cli.terminal import put_json, put_text
from a2c_smcp.protocol.chunks import decoded_size
from a2c_smcp.protocol.results import CallToolResult

__all__ = ["PutWork", "cannot_write", "file_failure", "put_result", "save", "show_saved"]

_BINARY = ("data", "blob")
_SHOWN = 200
"""Characters of binary content that a terminal is shown."""


def file_failure(error: OSError, remedy: str = "Correct that, or name another place.") -> Failed:
    what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return Failed(what, remedy)


@dataclass(frozen=True)
class PutWork:
    """The work of `a2c-smcp agent put`."""

    computer: str
    path: Path
    name: str | None
    as_json: bool

    def __post_init__(self) -> None:
        """Raises `WrongUse`."""
        if not self.path.is_file():
            what = "is not a file" if self.path.exists() else "does not exist"
            raise WrongUse(f"{self.path} {what}", "Name one file; a folder can be packed into an archive first.")
        if not self.path.stat().st_size:
            raise WrongUse(f"{self.path} is empty", "An empty file cannot be sent.")

    async def __call__(self, context: OfficeContext) -> None:
        try:
            with spinning(context.terminal, f"{self.path.name} to {self.computer}", "Ctrl-C gives up") as meter:
                landed = await context.agent.put_file(self.computer, self.path, self.name, meter.report_bytes)
        except OSError as error:
            raise file_failure(error) from None
        if self.as_json:
            put_json({"computer": self.computer, "landing_path": landed, "total_size": self.path.stat().st_size})
        else:
            put_text(landed)


def show_saved(result: CallToolResult, context: OfficeContext) -> None:
    """Say which files were written."""
    for file in result.files:
        context.terminal.show(f"saved {file} ({Path(file).stat().st_size:,} bytes)")


async def save(content: bytes, path: Path) -> None:
    """Write a file that an option names, whole or not at all. Raises `Failed`."""

    async def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        await write_file(path, write, replace=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> Failed:
    return Failed(f"{path} cannot be written: {error.strerror}", "Give another file with --output.")


def put_result(result: Mapping[str, Any], remedy: str, *, in_one_line: bool = False) -> None:
    """Print a result as JSON: whole for a program; on a terminal the `remedy` is in the place of binary contents."""
    put_json(_shortened(result, remedy) if sys.stdout.isatty() else result, in_one_line=in_one_line)


def _shortened(value: Any, remedy: str, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _shortened(each, remedy, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each, remedy) for each in value]
    if key in _BINARY and isinstance(value, str) and len(value) > _SHOWN:
        return f"({decoded_size(value):,} bytes: {remedy})"
    return value
