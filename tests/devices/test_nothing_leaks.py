"""What was sealed is nowhere in the memory, the logs or the store of the Servers that carried it."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted
from tests.devices.malicious import pieces
from tests.program import Running, start_program
from tests.valkey import Valkey, running_valkey

pytestmark = pytest.mark.covers("sealed-nothing-left")


def random_text() -> str:
    return base64.b64encode(os.urandom(66)).decode()


def memory_of(pid: int) -> Iterator[bytes]:
    """All memory of a process that it can write to."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            where, rights, *_ = line.split()
            if not rights.startswith("rw") or line.rstrip().endswith("[vvar]"):
                continue
            first, last = (int(number, 16) for number in where.split("-"))
            try:
                memory.seek(first)
                yield memory.read(last - first)
            except (OSError, OverflowError):
                continue


def found_in(pid: int, texts: list[str]) -> set[bytes]:
    wanted = [piece.encode() for text in texts for piece in pieces(text)]
    return {piece for content in memory_of(pid) for piece in wanted if piece in content}


class Nodes:
    """Two nodes of a Server as programs, on one store, that log everything they can."""

    def __init__(self, store: Valkey, folder: Path) -> None:
        self.store, self._folder = store, folder
        self.programs: list[Running] = []
        self.urls: list[str] = []

    async def start(self) -> None:
        for name in ("east", "west"):
            words = ("server", "--port", "0", "--node", name, "--redis", self.store.url, "--log-level", "debug")
            with self.log(name).open("wb") as log:
                program = await start_program(*words, stderr=log.fileno())
            self.programs.append(program)
            assert program.stdout
            line = (await program.stdout.readline()).decode()
            self.urls.append(next(word for word in line.split() if word.startswith("http")))

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def logged(self) -> bytes:
        return b"".join(self.log(name).read_bytes() for name in ("east", "west"))

    @property
    def pids(self) -> list[int]:
        return [program.pid for program in self.programs] + [self.store.pid]

    async def close(self) -> None:
        for program in self.programs:
            program.terminate()
            await program.wait()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    with running_valkey() as store:
        nodes = Nodes(store, tmp_path)
        try:
            await nodes.start()
            yield nodes
        finally:
            await nodes.close()


async def test_the_servers_hold_nothing_of_a_sealed_call(nodes: Nodes, office: str, tmp_path: Path) -> None:
    result = random_text()
    computer = Computer("laptop", state_folder=tmp_path / "computer", e2e="prefer", sign=True)

    @computer.tool(auto_apply=True)
    async def tell(text: str) -> str:
        return result

    async def call(text: str, **options: Any) -> None:
        given = {"url": nodes.urls[1], "office": office, "state_folder": tmp_path / "agent", **options}
        async with AsyncSMCPAgentClient(f"planner of {options.get('e2e')}", **given) as agent:
            assert (await agent.emit_tool_call("laptop", "tell", {"text": text})).text == result
            kept = [found_in(pid, [text, result]) for pid in nodes.pids]
        assert bool(set().union(*kept)) is (not options), kept

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(hosted(computer, nodes.urls[0], office, tmp_path / "computer"))
        sealed = random_text()
        await call(sealed, e2e="prefer", verify=True)
        assert not [piece for text in (sealed, result) for piece in pieces(text) if piece.encode() in nodes.logged()]
        await call(random_text())  # a plain call is found there: the search works
