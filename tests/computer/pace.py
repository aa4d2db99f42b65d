"""The limits in seconds that the specification gives: what others take of the machine meanwhile does not count."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Slowdown", "slowdown", "within"]

# Works a little, over and over, and says in the end how much longer that took than the work itself.
_PROBE = """
import select, sys, time
took = worked = 0.0
print("ready", flush=True)
while True:
    began, before = time.perf_counter(), time.process_time()
    while time.process_time() - before < 0.002:
        pass
    took += time.perf_counter() - began
    worked += time.process_time() - before
    if select.select([sys.stdin], [], [], 0.02)[0]:
        break
print(took / worked)
"""


class Slowdown:
    """How many times as long as alone work took in this block; known after it."""

    factor = 1.0


@contextmanager
def slowdown() -> Iterator[Slowdown]:
    found = Slowdown()
    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdout
        assert probe.stdout.readline() == "ready\n"
        yield found
        found.factor = max(1.0, float(probe.communicate()[0]))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails the test if this takes longer. On a busy machine, where any work does, it may take as much longer."""
    with slowdown() as found:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
    assert took < seconds * found.factor, f"{took:.2f} s, and other work took {found.factor:.1f} times as long as alone"
