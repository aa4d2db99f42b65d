"""Programs that are started with closed standard streams, as some supervisors and shells do (`<&-`, `2>&-`)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx2
import pytest

from a2c_smcp.audit.reading import verify
from a2c_smcp.errors import Unavailable
from tests.ports import free_port
from tests.program import PROGRAM
from tests.stage.place import Place
from tests.waiting import until_it_goes

pytestmark = pytest.mark.covers("closed-streams")


def streams_of(process: int) -> set[str]:
    return {str(Path(f"/proc/{process}/fd/{number}").readlink()) for number in range(3)}


async def health(process: asyncio.subprocess.Process, port: int) -> None:
    if process.returncode is not None:
        raise RuntimeError("the Server has ended")
    async with httpx2.AsyncClient() as http:
        try:
            answer = await http.get(f"http://127.0.0.1:{port}/healthz")
        except httpx2.ConnectError as error:
            raise Unavailable("it does not listen yet") from error
    assert answer.json() == {"status": "ok"}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_a_server_with_closed_streams_serves_and_ends_and_no_file_or_socket_takes_their_place(
    place: Place, closed: str
) -> None:
    port = free_port()
    line = f'exec "{PROGRAM}" server --port {port} --audit audit.jsonl --log-level debug </dev/null >out 2>err {closed}'
    process = await asyncio.create_subprocess_exec("sh", "-c", line, cwd=place.folder, env=place.environ)
    try:
        await until_it_goes(lambda: health(process, port))
        streams = streams_of(process.pid)
        assert streams <= {os.devnull, *(str(place.folder / name) for name in ("out", "err"))}
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert verify(Path(place.folder, "audit.jsonl"))[0] == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
async def test_a_command_with_a_closed_stream_ends_as_with_any_other(place: Place, closed: str) -> None:
    line = f'"{PROGRAM}" office ls --admin-key an-admin-key-1234 --url http://127.0.0.1:1 {closed}'
    process = await asyncio.create_subprocess_exec("sh", "-c", line, cwd=place.folder, env=place.environ, stderr=-3)
    assert await process.wait() == 1
