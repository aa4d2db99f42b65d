"""The program that runs VRL scripts in a process of its own. It imports nothing of ours and can only compute.

A request and an answer are each a length in four bytes and so many bytes. A request is JSON, `[source, event]`, or
`[source]` to compile only. An answer is a line that says `ok`, with the event as JSON after it, or `failed`, with why.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["main"]

MEMORY = 64 * 1024 * 1024
PATIENCE = 10  # seconds; whoever asks is less patient, and is gone if this ends us


def main() -> None:
    from vrl_python import VRLRuntime

    _confine()
    runtimes: dict[str, Any] = {}
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while frame := _read(requests):
        if hasattr(signal, "alarm"):
            signal.alarm(PATIENCE)
        answer = _answer(VRLRuntime, runtimes, frame)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        answers.write(len(answer).to_bytes(4, "big") + answer)
        answers.flush()


def _read(requests: BinaryIO) -> bytes:
    return requests.read(int.from_bytes(requests.read(4), "big"))


def _answer(runtime: Any, runtimes: dict[str, Any], frame: bytes) -> bytes:
    source, *events = json.loads(frame)
    try:
        if source not in runtimes:
            compiled = runtime()
            compiled.compile(source)
            runtimes[source] = compiled
        outcome = [runtimes[source].execute(source, event).processed_event for event in events]
        answer = "ok\n" + json.dumps(outcome[0] if outcome else None, ensure_ascii=False, allow_nan=False)
    except BaseException as error:  # a panic in native code is not an Exception
        answer = f"failed\n{error}"
    return answer.encode("utf-8", "replace")


def _confine() -> None:
    """No more memory, no new file, socket or process, no core dump, where the system knows such limits."""
    try:
        import resource
    except ImportError:
        return
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_AS": _size() + MEMORY, "RLIMIT_NOFILE": 3}
    for name, value in limits.items():
        with suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _size() -> int:
    """Of the address space in use, in bytes; where that is not told, as much as nobody needs."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1024 * 1024 * 1024


if __name__ == "__main__":
    main()
