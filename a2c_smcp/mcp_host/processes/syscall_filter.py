"""A seccomp filter for what Landlock does not see: sockets, memory shared by number, limits of others, modes of files.

Standard library only: the guard process runs it, in the child, before `exec`. Landlock checks TCP ports only in
`connect` and `bind` of plain TCP. Multipath TCP, TCP Fast Open (a `send` that connects), `listen` without `bind` and
io_uring pass it by; it has no rule for UDP, Unix sockets and System V memory. So this filter denies these, and every
family of sockets that it does not name. It reads numbers only, no memory of the process: it cannot tell hosts apart,
nor files. So a server that may write to a folder of the owner may change the mode of every file, and others of none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from typing import Final

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_PR_GET_SECCOMP = 21
_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_DENIED, _UNKNOWN = _FAIL | errno.EACCES, _FAIL | errno.ENOSYS
_NOT_PERMITTED, _NOT_SUPPORTED, _NO_EFFECT = _FAIL | errno.EPERM, _FAIL | errno.ENOTSUP, _FAIL | 0
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16  # offsets in the kernel's description of a call; arguments have 8 bytes each
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _PACKETS, _KIND_MASK = 1, 2, 5, 0xF
_TCP, _UDP = (0, 6), (0, 17)
_FAST_OPEN = 0x20000000
_X32: Final = 0x40000000

_GENERIC = {
    "socket": 198, "listen": 201, "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "io_uring_setup": 425,
    "add_key": 217, "request_key": 218, "keyctl": 219, "mq_open": 180,
    "shmget": 194, "shmctl": 195, "shmat": 196, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189,
    "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193,
    "socketpair": 199, "prlimit64": 261, "inotify_init1": 26, "fanotify_init": 262,
    "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54, "file_setattr": 469,
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "setxattrat": 463,
    "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "removexattrat": 466,
}  # fmt: skip
_X86 = {
    "socket": 41, "listen": 50, "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "io_uring_setup": 425,
    "add_key": 248, "request_key": 249, "keyctl": 250, "mq_open": 240,
    "shmget": 29, "shmctl": 31, "shmat": 30, "msgget": 68, "msgctl": 71, "msgrcv": 70, "msgsnd": 69,
    "semget": 64, "semctl": 66, "semtimedop": 220, "semop": 65,
    "socketpair": 53, "prlimit64": 302, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300,
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452,
    "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "file_setattr": 469,
    "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463,
    "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "removexattrat": 466,
}  # fmt: skip
_MACHINES = {
    "x86_64": (0xC000003E, _X86),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
}
_NEVER = (
    "io_uring_setup", "add_key", "request_key", "keyctl", "mq_open", "shmget", "shmctl", "shmat", "msgget", "msgctl",
    "msgrcv", "msgsnd", "semget", "semctl", "semtimedop", "semop", "fanotify_init",
)  # fmt: skip
_WATCHES = ("inotify_init", "inotify_init1")
_MODES = ("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat")
_ATTRIBUTES = (
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat",
    "file_setattr",
)  # fmt: skip
_FLAGS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
"""Which argument of a call holds its flags."""

Instruction = tuple[int, int, int, int]


def is_possible() -> bool:
    """True if this machine's calls are known, and its kernel has filters."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0)


def install(*, ports: bool | None, unix: bool, watches: bool, modes: bool) -> None:
    """Filter all later calls of this process. Raises `OSError`. It must have given up new privileges before.

    `ports`: whether it may connect to some TCP ports, and so use UDP, which finds their addresses; `None` for all
    sockets. `unix`: whether it may use Unix sockets; it may listen on them if it may connect to no port.
    `watches`: whether it may be told of changes in folders, of which it learns the names of files. `modes`: whether it
    may change modes, owners and attributes of files.
    """
    architecture, calls = _MACHINES[os.uname().machine]
    program = [
        *_beginning(architecture, calls),
        *([] if watches else _all(calls, _WATCHES, _DENIED)),
        # Modes stay as they are, without an error: temporary files need none, and many programs copy them with a file.
        *([] if modes else [*_all(calls, _MODES, _NO_EFFECT), *_all(calls, _ATTRIBUTES, _NOT_SUPPORTED)]),
        *_about_sockets(calls, ports=ports, unix=unix),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(code) // 8, ctypes.addressof(memory))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "the filter of its sandbox was refused")


def _beginning(architecture: int, calls: dict[str, int]) -> list[Instruction]:
    """Leave the number of the call loaded, and deny what no sandboxed process may do."""
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUALS, 1, 0, architecture), (_RETURN, 0, 0, _UNKNOWN)]
    code.append((_LOAD, 0, 0, _NUMBER))
    if calls is _X86:
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _UNKNOWN)]
    others = [(_LOAD, 0, 0, _of_argument(0)), *_if(0, [(_RETURN, 0, 0, _ALLOW)]), (_RETURN, 0, 0, _NOT_PERMITTED)]
    return [*code, *_all(calls, _NEVER, _UNKNOWN), *_if(calls["prlimit64"], others)]


def _about_sockets(calls: dict[str, int], *, ports: bool | None, unix: bool) -> list[Instruction]:
    code: list[Instruction] = []
    if ports is None:
        return code
    if ports or not unix:  # a socket of TCP that listens without `bind` is bound to a port, at every address
        code += _if(calls["listen"], [(_RETURN, 0, 0, _DENIED)])
    code += _if(calls["socketpair"], _pair(unix=unix))
    for name, argument in _FLAGS.items():
        fast_open = [(_LOAD, 0, 0, _of_argument(argument)), (_ANY_BIT, 0, 1, _FAST_OPEN), (_RETURN, 0, 0, _DENIED)]
        code += _if(calls[name], [*fast_open, (_RETURN, 0, 0, _ALLOW)])
    return [*code, *_if(calls["socket"], _socket(ports=ports, unix=unix))]


def _pair(*, unix: bool) -> list[Instruction]:
    """Deny two connected sockets of datagrams: each of them can still send to any other Unix socket.

    Those of other families than Unix, such as TIPC, can send elsewhere, too.
    """
    allowed: list[Instruction] = [(_RETURN, 0, 0, _ALLOW)]
    kinds = [instruction for kind in (_STREAM, _PACKETS) for instruction in _if(kind, allowed)]
    of_unix = allowed if unix else [(_LOAD, 0, 0, _of_argument(1)), (_AND, 0, 0, _KIND_MASK), *kinds, _REFUSE]
    return [(_LOAD, 0, 0, _of_argument(0)), *_if(_UNIX, of_unix), _REFUSE]


def _socket(*, ports: bool, unix: bool) -> list[Instruction]:
    """Deny every socket but plain TCP and UDP, netlink without rights, and Unix sockets, as far as they are allowed."""
    code: list[Instruction] = [(_LOAD, 0, 0, _of_argument(0)), *_if(_NETLINK, [(_RETURN, 0, 0, _ALLOW)])]
    if unix:
        code += _if(_UNIX, [(_RETURN, 0, 0, _ALLOW)])
    if ports:
        for family in (_INET, _INET6):
            kind = [(_LOAD, 0, 0, _of_argument(1)), (_AND, 0, 0, _KIND_MASK)]
            code += _if(family, [*kind, *_if(_STREAM, _protocol(_TCP)), *_if(_DATAGRAM, _protocol(_UDP)), _REFUSE])
    return [*code, _REFUSE]


_REFUSE: Instruction = (_RETURN, 0, 0, _DENIED)


def _protocol(allowed: Iterable[int]) -> list[Instruction]:
    code: list[Instruction] = [(_LOAD, 0, 0, _of_argument(2))]
    for protocol in allowed:
        code += _if(protocol, [(_RETURN, 0, 0, _ALLOW)])
    return [*code, _REFUSE]


def _all(calls: dict[str, int], names: Iterable[str], outcome: int) -> list[Instruction]:
    """Return this outcome for all of these calls, as far as the machine has them."""
    known = [calls[name] for name in names if name in calls]
    return [instruction for number in known for instruction in _if(number, [(_RETURN, 0, 0, outcome)])]


def _if(value: int, then: list[Instruction]) -> list[Instruction]:
    """Run these instructions if the loaded number is this value. They have to end with a return."""
    return [(_EQUALS, 0, len(then), value), *then]


def _of_argument(position: int) -> int:
    """Return the offset of the lower half of an argument, on a little-endian machine."""
    return _FIRST + 8 * position
