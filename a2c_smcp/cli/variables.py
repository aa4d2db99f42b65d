"""Environment variables of the Server's options. None is one that clients read: a client's key opens no Server."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["server_variable", "unused_variables"]

_OURS, _OLDER = "A2C_SERVER_", "A2C_"


def server_variable(option: str) -> str:
    """`--keys-file` is A2C_SERVER_KEYS_FILE."""
    return _OURS + option.lstrip("-").replace("-", "_").upper()


def unused_variables(options: Iterable[str]) -> str:
    """What to say of variables that are set and were the Server's under their older names; nothing if there are none.

    Where the newer one is set too, the older one is meant for clients.
    """
    ours = [server_variable(option) for option in options]
    older = {_OLDER + name.removeprefix(_OURS): name for name in ours if name not in os.environ}
    found = [(name, newer) for name, newer in older.items() if os.environ.get(name)]
    if not found:
        return ""
    names, newer = (", ".join(each) for each in zip(*found, strict=True))
    return f"not used by the Server: {names}; its own variables begin with A2C_SERVER_, so write {newer} if it is meant"
