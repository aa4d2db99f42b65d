"""What changes in a file, as a unified diff that gives no secret away."""

from __future__ import annotations

import difflib
import json

from a2c_smcp.computer.imports.target import Target
from a2c_smcp.computer.secrets.shown import shown

__all__ = ["difference"]


def difference(before: Target, after: Target) -> str:
    """Empty where nothing changes that may be shown."""
    name = str(before.path)
    lines = difflib.unified_diff(
        _lines(before) if before.exists else [],
        _lines(after),
        name if before.exists else "/dev/null",
        name,
        lineterm="",
    )
    return "".join(f"{line}\n" for line in lines)


def _lines(target: Target) -> list[str]:
    return json.dumps(shown(target.data), indent=2, ensure_ascii=False).splitlines()
