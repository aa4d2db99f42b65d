"""Landlock: gives up the right to use files, TCP ports, signals and abstract sockets, for a process and its children.

Standard library only, because the guard process runs it, in the child, before `exec`. The kernel denies what is handled
by a ruleset and not allowed by one of its rules. A later version of the interface (ABI) handles more; what an earlier
one does not know stays allowed, so `BY_ABI` says what each adds. There is no way back: neither `exec`, nor `fork`, nor
another ruleset restores a right. A process in a ruleset cannot trace processes outside it, in any version.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

BY_ABI = {
    1: ("5.13", "files"),
    2: ("5.19", "moving files between folders"),
    3: ("6.2", "truncating files"),
    4: ("6.7", "TCP ports"),
    5: ("6.10", "ioctl on devices"),
    6: ("6.12", "signals and abstract Unix sockets"),
    7: ("6.15", "a record of refusals in the audit log"),
}
"""For each version, the Linux that brought it, and what it can restrict."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_OF_ONE_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_RIGHTS = {
    "read": _READ,
    "write": ((1 << 15) - 1) & ~(_MAKE_CHAR | _MAKE_BLOCK),
    "move": _REFER,
    "device": _READ_FILE | _WRITE_FILE | _IOCTL_DEV,
}
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_TCP_SINCE = 4
SIGNALS_SINCE = 6


def abi() -> int:
    """Return the version of the kernel's interface; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def restrict(spec: dict[str, Any]) -> None:
    """Restrict this process for good. Raises `OSError` if the kernel does not do what is asked.

    `files` is a list of `[kind, path]` with kinds of `_RIGHTS`; `ports` a list of TCP ports, or `None` for any.
    """
    version = abi()
    if not version:
        raise OSError("this kernel has no Landlock")
    ports = spec["ports"] if version >= _TCP_SINCE else None
    handled = _ALL_FILES[min(version, max(_ALL_FILES))]
    ruleset = _ruleset(version, handled, has_ports=ports is not None)
    try:
        _allow_files(ruleset, spec["files"], handled)
        for port in ports or ():
            _add(ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port))
        give_up_privileges()
        _checked(_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def separate() -> None:
    """Enter a ruleset inside the one before: processes that stay in that one can be neither signalled nor traced.

    Needs version `SIGNALS_SINCE`. Raises `OSError`.
    """
    attributes = struct.pack("=QQQ", _REFER, 0, _SIGNALS)
    ruleset = _checked(_call(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        _allow_files(ruleset, [("move", os.path.sep)], _REFER)  # a ruleset that does not allow it denies it
        _checked(_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def give_up_privileges() -> None:
    """Let no later `exec` gain a privilege; a sandbox cannot be entered otherwise."""
    _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _ruleset(version: int, files: int, *, has_ports: bool) -> int:
    attributes = struct.pack("=Q", files)
    if version >= _TCP_SINCE:
        attributes += struct.pack("=Q", _BIND_TCP | _CONNECT_TCP if has_ports else 0)
    if version >= SIGNALS_SINCE:
        attributes += struct.pack("=Q", _SIGNALS | (_ABSTRACT_SOCKETS if has_ports else 0))
    return _checked(_call(_CREATE_RULESET, attributes, len(attributes), 0))


def _allow_files(ruleset: int, files: Iterable[tuple[str, str]], handled: int) -> None:
    for kind, path in files:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rights = _RIGHTS[kind] & handled
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _OF_ONE_FILE
            _add(ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor))
        finally:
            os.close(descriptor)


def _add(ruleset: int, kind: int, rule: bytes) -> None:
    _checked(_call(_ADD_RULE, ruleset, kind, rule, 0))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = _libc().syscall(ctypes.c_long(number), *words)
    return result


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the sandbox was refused: {os.strerror(number)}")
    return result
