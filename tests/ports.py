"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_RANGE = range(10_000, 32_768)
"""Below those that systems give to outgoing connections, so that nobody takes one before its server does."""


def free_port() -> int:
    while True:
        port = random.choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
