"""Values of inputs in files: the one that is named, and those that `a2c-smcp import` puts beside a configuration."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.computer.private_files import remedy_for

__all__ = ["beside", "is_open_to_git", "read_values"]

_NOT_IGNORED = 1
_PATIENCE = 5.0
_REMEDY = 'Write an object into it, such as {"token": "…"}.'


def beside(config: Path) -> Path:
    """Where the values of a configuration are kept if there is no keyring: `a2c.inputs.json` for `a2c.json`."""
    return config.with_name(f"{config.stem}.inputs.json")


def is_open_to_git(path: Path) -> bool:
    """Whether `git add` would take a file that holds secrets. Where there is no git, nobody knows, and it is no."""
    folder = path.absolute().parent
    if not any((each / ".git").exists() for each in (folder, *folder.parents)):
        return False
    command = ["git", "-C", str(folder), "check-ignore", "--quiet", "--no-index", path.name]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        asked = subprocess.run(  # noqa: S603, git and the name of our own file
            command, env=surroundings, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == _NOT_IGNORED


def read_values(given: Path | None, configs: Iterable[Path] = ()) -> dict[str, Any]:
    """The values in all of them; what is given wins. Raises `WrongUse`."""
    kept = [path for path in map(beside, configs) if path.is_file()]
    return {name: value for path in [*kept, *([given] if given else [])] for name, value in _read(path).items()}


def _read(path: Path) -> dict[str, Any]:
    if remedy := remedy_for(path):
        raise WrongUse(f"{path} can be changed by others on this machine, and is not used", f"Run: {remedy}")
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WrongUse(f"{path}: cannot be read: {error.strerror}", "Name a file that can.") from None
    except ValueError:
        raise WrongUse(f"{path}: is no JSON", _REMEDY) from None
    if not isinstance(values, dict):
        raise WrongUse(f"{path}: is no JSON object", _REMEDY)
    return values
