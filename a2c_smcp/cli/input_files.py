"""Values of inputs in files: the one that is named, and those that `a2c-smcp import` puts beside a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from a2c_smcp.cli.remedies import WrongUse

__all__ = ["beside", "read_values"]

_REMEDY = 'Write an object into it, such as {"token": "…"}.'


def beside(config: Path) -> Path:
    """Where the values of a configuration are kept if there is no keyring: `a2c.inputs.json` for `a2c.json`."""
    return config.with_name(f"{config.stem}.inputs.json")


def read_values(given: Path | None, configs: Iterable[Path] = ()) -> dict[str, Any]:
    """The values in all of them; what is given wins. Raises `WrongUse`."""
    kept = [path for path in map(beside, configs) if path.is_file()]
    return {name: value for path in [*kept, *([given] if given else [])] for name, value in _read(path).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WrongUse(f"{path}: cannot be read as JSON: {type(error).__name__}", _REMEDY) from None
    if not isinstance(values, dict):
        raise WrongUse(f"{path}: is no JSON object", _REMEDY)
    return values
