"""`a2c-smcp`, imported once and forked for each run: what a run does is real, what it costs is not the imports.

Reads a request a line, `{"words", "env", "cwd", "stdin", "stdout", "stderr", "done"}`. When the run has ended, its exit
code stands in `done`, a named pipe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from a2c_smcp.cli import main
from a2c_smcp.cli.app import build

FLAGS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}


def serve() -> None:
    build()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while line := sys.stdin.buffer.readline():
        if os.fork() == 0:
            attend(json.loads(line))


def attend(request: dict[str, Any]) -> None:
    """Waits for the run, in a process of its own, so that several may run at once."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        run(request)
    _, status = os.waitpid(child, 0)
    Path(request["done"]).write_text(str(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def run(request: dict[str, Any]) -> None:
    """Becomes the program."""
    for descriptor, (name, flags) in enumerate(FLAGS.items()):
        os.dup2(os.open(request[name], flags), descriptor)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["a2c-smcp", *request["words"]]
    main()
    sys.exit(0)


if __name__ == "__main__":
    serve()
