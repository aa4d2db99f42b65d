"""Runs of `a2c-smcp` that come to an end by themselves, many of them: see `zygote`."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from threading import Lock

__all__ = ["run_program"]

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""

_asking = Lock()


def run_program(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, typed: str = ""
) -> CompletedProcess[str]:
    """As `subprocess.run` would, with everything it said as text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stdin").write_text(typed, "utf-8")
        for stream in ("stdout", "stderr"):
            (folder / stream).touch()
        os.mkfifo(folder / "done")
        places = {each.name: str(each) for each in folder.iterdir()}
        surroundings = dict(os.environ if env is None else env)
        _ask({"words": list(map(str, words)), "env": surroundings, "cwd": str(cwd or Path.cwd()), **places})
        code = _code(folder / "done", words)
        out, err = ((folder / stream).read_text("utf-8") for stream in ("stdout", "stderr"))
    return CompletedProcess(["a2c-smcp", *map(str, words)], code, out, err)


def _ask(request: Mapping[str, object]) -> None:
    with _asking:
        stdin = _zygote().stdin
        assert stdin
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()


def _code(done: Path, words: tuple[object, ...]) -> int:
    pipe = os.open(done, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        if not poll.poll(PATIENCE * 1000):
            raise TimeoutExpired(list(map(str, words)), PATIENCE)
        return int(os.read(pipe, 16))
    finally:
        os.close(pipe)


@cache
def _zygote() -> subprocess.Popen[bytes]:
    """One for each process that runs tests."""
    command = [sys.executable, "-P", Path(__file__).with_name("zygote.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdout.readline()
    atexit.register(process.stdin.close)
    return process
