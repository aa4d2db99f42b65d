"""Record the shapes that pass through the websockets of a whole test run, to be compared before and after a change.

`A2C_GOLDEN_RECORD=FOLDER .venv/bin/pytest -p tests.golden.recorder …; sort -u FOLDER/* >before.txt`

All clients in the process of the tests use aiohttp: ours, python-socketio's and those by hand. Only what a test's own
timing decides differs between two runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import ClientWebSocketResponse, WSMsgType

from tests.golden.shapes import fields_of
from tests.golden.tap import Conversation


class _File:
    """The lines of one process."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, topic: str, message: Any, place: str) -> None:
        line = f"{topic} ({place}) {'; '.join(fields_of(message))}\n"
        if line not in self._seen:
            self._seen.add(line)
            with (Path(os.environ["A2C_GOLDEN_RECORD"]) / f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
                file.write(line)


_file, _talks = _File(), WeakKeyDictionary[ClientWebSocketResponse, Conversation]()


def _take(socket: ClientWebSocketResponse, data: Any, *, is_client: bool) -> None:
    try:
        _talks.setdefault(socket, Conversation(_file)).take(data, is_client=is_client)
    except Exception:  # a test sends nonsense, or another protocol
        return


def _patch(name: str) -> None:
    plain = getattr(ClientWebSocketResponse, name)

    async def send(self: Any, data: Any, *more: Any, **options: Any) -> None:
        _take(self, data.decode() if WSMsgType.TEXT in more else data, is_client=True)
        await plain(self, data, *more, **options)

    async def receive(self: Any, *more: Any, **options: Any) -> Any:
        message = await plain(self, *more, **options)
        _take(self, message.data, is_client=False)
        return message

    setattr(ClientWebSocketResponse, name, receive if name == "receive" else send)


for method in ("send_str", "send_bytes", "send_frame", "receive"):
    _patch(method)
