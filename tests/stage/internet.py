"""Names and public addresses without the internet: a resolver of our own, and a proxy behind which they all are."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest

from tests.balancer import Balancer, exchange


class Names:
    """What DNS says. A name with several answers says the next one at each look-up, and the last one from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        real = socket.getaddrinfo

        def getaddrinfo(host: Any, port: Any, *options: Any, **more: Any) -> Any:
            if host not in self.answers:
                return real(host, port, *options, **more)
            self.asked.append(host)
            answers = self.answers[host]
            addresses = answers.pop(0) if len(answers) > 1 else answers[0]
            return [found for each in addresses for found in real(each, port, *options, **more)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


class ForwardProxy(Balancer):
    """Takes every request to one port of this machine, and notes where it should have gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.port = 0
        self.targets: list[str] = []
        self.hosts: list[str] = []
        self._monkeypatch = monkeypatch

    def stand_before(self, port: int) -> None:
        """From now on HTTP clients of this process use it."""
        self.port = port
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            self._monkeypatch.setenv(name, self.url)
        for name in ("no_proxy", "NO_PROXY"):
            self._monkeypatch.setenv(name, "127.0.0.1")

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            head = await reader.readuntil(b"\r\n\r\n")
            line, *fields = head.decode().split("\r\n")
            method, target, _ = line.split()
            self.targets.append(target)
            self.hosts += [field[5:].strip() for field in fields if field.lower().startswith("host:")]
            behind, before = await asyncio.open_connection("127.0.0.1", self.port)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                before.write(head.replace(target.encode(), b"/" + target.split("/", 3)[3].encode(), 1))
            await exchange((reader, before), (behind, writer))
