"""What a sandboxed server was probably refused, for its owner's log.

The kernel tells a user nothing of refusals: only root reads its audit log. So this reads what the server says, on
stderr and in its answers: a line about missing permission that names a path, which is not in the sandbox and exists, or
could be made in a folder that exists. A server may say anything, so the words are "seems to want". The path is logged,
never the line, which may hold a secret.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection

from a2c_smcp.mcp_host.sandbox.plan import Sandbox
from a2c_smcp.protocol.visible import one_line

__all__ = ["RefusedPaths"]

logger = logging.getLogger(__name__)

_HINTS = (b"ermission denied", b"EACCES", b"ermissionError", b"not permitted", b"EPERM")
_LINE = re.compile(rb"[^\n]*(?:" + b"|".join(_HINTS) + rb")[^\n]*")
_PATH = re.compile(r"""'(/[^'\n]+)'|"(/[^"\n\\]+)"|(?<![\w./])(/[^\s'",:;)\\]+)""")
_LONGEST_LINE = 4096
_MOST = 20
_LONGEST_PATH = 300


class RefusedPaths:
    """Reads the output of one process of a server. `warnings` are sentences for the owner.

    They are logged, too, except those that were `told` already.
    """

    def __init__(self, name: str, sandbox: Sandbox, told: Collection[str] = ()) -> None:
        self._name = name
        self._sandbox = sandbox
        self._seen: set[str] = set()
        self._told = frozenset(told)
        self.warnings: list[str] = []
        for warning in sandbox.warnings:
            self._tell(warning)

    def read(self, data: bytes) -> None:
        """Look for refusals in a piece of output. One that is cut in half is not found."""
        if len(self._seen) >= _MOST or not any(hint in data for hint in _HINTS):
            return
        for line in _LINE.findall(data):
            for found in _PATH.findall(line[:_LONGEST_LINE].decode("utf-8", "replace")):
                self._add(next(filter(None, found)))

    def _add(self, path: str) -> None:
        is_there = os.path.lexists(path)
        if path in self._seen or len(self._seen) >= _MOST or not (is_there or _could_be_made(path)):
            return
        self._seen.add(path)
        if is_there and not self._sandbox.allows("read", path):
            self._warn("read", path)
        elif not self._sandbox.allows("write", path):
            self._warn("write", path)

    def _warn(self, access: str, path: str) -> None:
        shown = one_line(path, _LONGEST_PATH)
        self._tell(f"it seems to want to {access} {shown}, which its sandbox refuses (sandbox.{access})")

    def _tell(self, warning: str) -> None:
        self.warnings.append(warning)
        if warning not in self._told:
            logger.warning("%s: sandbox: %s", self._name, warning)


def _could_be_made(path: str) -> bool:
    """Whether the folder of a path exists. What would be beside the folders of the system is no path, but a word."""
    folder = os.path.dirname(path.rstrip(os.path.sep))  # noqa: PTH120
    return folder != os.path.sep and os.path.isdir(folder)  # noqa: PTH112
