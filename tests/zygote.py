"""A fork server for `a2c-smcp`: it imports the whole package once and forks a process for each run.

A run is a real process with its own streams, environment and end; it only does not pay for the imports again.
Requests come over the Unix socket whose descriptor is `argv[1]`, one JSON object each,
`{"words", "env", "cwd", "session"}`, together with four descriptors: the streams of the run and a pipe. Into the pipe
goes the process id at once and the exit code at the end, a line each.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import json
import os
import selectors
import signal
import socket
import sys
import termios
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import a2c_smcp
from a2c_smcp.cli import main

MOST = 1 << 20
PROGRAM = Path(sys.executable).with_name("a2c-smcp")


def preload() -> None:
    for module in walk_packages(a2c_smcp.__path__, "a2c_smcp."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> None:
    """Until the tests have ended. Returns in a forked process only, with the streams of its run in place."""
    running: dict[int, int] = {}
    wake, alarm = socket.socketpair()
    alarm.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(alarm.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake in ready:
                wake.recv(4096)
                report(running)
            if requests not in ready:
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, MOST, 4)
            if not message:
                os._exit(0)
            *streams, status = descriptors
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                become(json.loads(message), streams)
                return
            for stream in streams:
                os.close(stream)
            running[child] = status
            tell(status, child)


def report(running: dict[int, int]) -> None:
    while True:
        try:
            child, state = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        status = running.pop(child)
        tell(status, os.waitstatus_to_exitcode(state))
        os.close(status)


def tell(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the test does not want to know any more
        os.write(status, b"%d\n" % number)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Makes this process look as if it had just been started by the test."""
    if request["session"]:
        os.setsid()
        fcntl.ioctl(next(filter(os.isatty, streams)), termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding="utf-8")
    sys.stdout = text(1, at_once=at_once, line_buffering=os.isatty(1))
    sys.stderr = text(2, at_once=at_once, line_buffering=True, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [str(PROGRAM), *request["words"]]


def text(number: int, *, at_once: bool, **options: Any) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", write_through=at_once, **options)


def carry_out() -> None:
    """Runs the program and ends as Python would, but leaves its memory to the system, which is quick."""
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    preload()
    serve(socket.socket(fileno=int(sys.argv[1])))
    carry_out()
