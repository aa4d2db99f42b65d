"""How deep a tool call goes on the computer: a reader who follows it has to jump that often."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import a2c_smcp
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import Host
from tests.computer.supervised import good, text_of
from tests.peer import Peer

PACKAGE = str(Path(a2c_smcp.__file__).parent)
MOST = 15


def own_frames() -> list[str]:
    """The functions of the package that are on the stack, the innermost first."""
    frames: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            frames.append(f"{Path(frame.f_code.co_filename).name} {frame.f_code.co_name}")
        frame = frame.f_back
    return frames


async def test_a_tool_call_passes_few_frames_from_the_socket_to_the_pipe_of_its_server(
    host: Host, agent: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack where the request is written, and the one where the task of the call was begun."""
    begun: dict[asyncio.Task[Any] | None, list[str]] = {}
    written: list[list[str]] = []
    write = asyncio.StreamWriter.write

    def task_factory(loop: Any, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        begun[task] = own_frames()
        return task

    def watched_write(pipe: asyncio.StreamWriter, data: bytes) -> None:
        if b'"tools/call"' in data:
            written.append(own_frames() + begun[asyncio.current_task()])
        write(pipe, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", watched_write)
    asyncio.get_running_loop().set_task_factory(task_factory)
    computer = Computer("laptop")
    computer.add_server(good(default_tool_meta={"auto_apply": True}))
    await host(computer, "good")
    assert text_of(await agent.call_tool("laptop", "add", timeout=10, params={"a": 2, "b": 3})) == "5"
    [frames] = written
    assert frames[-1] == "connection.py _read"
    assert len(frames) <= MOST, "\n".join(frames)
