"""The program that every worker process runs: it answers requests with the function of one module.

It runs isolated (`python -I worker_program.py MODULE.py`) and imports nothing of this package. The module defines
`answer(request: bytes) -> bytes`, and `MEMORY`, the bytes it may use beyond those of its imports. After the imports the
process gives up the right to open files and sockets, to start processes and to use more memory: it can only compute.

On standard input and output each request and each answer has its length before it, in four bytes. The first answer is
empty and says that the worker is ready.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO

LONGEST_ANSWER = 10
"""Seconds. The parent process waits less: this ends a worker whose parent is gone."""


def main(path: str) -> None:
    module = _loaded(path)
    _give_up_rights(module.MEMORY)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _write(answers, b"")
    while request := requests.read(int.from_bytes(requests.read(4), "big")):
        _set_alarm(LONGEST_ANSWER)
        answer = module.answer(request)
        _set_alarm(0)
        _write(answers, answer)


def _loaded(path: str) -> Any:
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write(answers: BinaryIO, answer: bytes) -> None:
    answers.write(len(answer).to_bytes(4, "big") + answer)
    answers.flush()


def _set_alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _give_up_rights(memory: int) -> None:
    """Set the limits that this system knows."""
    try:
        import resource
    except ImportError:
        return
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_AS": _size() + memory, "RLIMIT_NOFILE": 3}
    for name, value in limits.items():
        with suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _size() -> int:
    """Return the bytes of the address space in use; 1 GiB if they are unknown."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1024 * 1024 * 1024


if __name__ == "__main__":
    main(sys.argv[1])
