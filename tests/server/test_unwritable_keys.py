"""Keys that are revoked where the keys file cannot be written, as on a read-only mount."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import socketio

from a2c_smcp.audit.reading import EntryFilter, entries
from a2c_smcp.server.auth.api_keys import hash_key, key_id
from tests.stage.crew import Crew
from tests.stage.keys import write_keys
from tests.stage.place import Place
from tests.valkey import running_valkey
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("revoke-unwritable")

ADMIN = "operator-0123456789"
LASTS = (
    "is refused until all processes of the Server are started again, with --redis for as long as the keys file has it"
)
LOST, KEPT = "lost-key-0123456789abcdef", "kept-key-0123456789abcdef"


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A keys file, and the path under which it can only be read: not even root can make a file in that folder."""
    keys = write_keys(tmp_path, {LOST: "lost", KEPT: "kept"})
    descriptor = os.open(keys, os.O_RDONLY)
    yield keys, Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    os.close(descriptor)


async def test_a_revoked_key_is_refused_at_once_by_all_workers_and_after_a_reload(
    place: Place, unwritable: tuple[Path, Path], connect: Any
) -> None:
    keys, path = unwritable
    crew = await Crew.start(place, "--keys-file", str(path), A2C_SERVER_ADMIN_KEY=ADMIN)
    assert "keys cannot be changed here" in await crew.program.says("keys cannot be changed here")
    inside = [await connect(crew, auth={"token": LOST}) for _ in range(6)]
    stays = await connect(crew, auth={"token": KEPT})

    async def admin(*words: str) -> Any:
        return await place.run("key", *words, "--url", crew.url, A2C_ADMIN_KEY=ADMIN)

    revoked = await admin("revoke", key_id(hash_key(LOST)))
    assert LASTS in revoked.err, revoked
    await until(lambda: not any(peer.client.connected for peer in inside))

    async def is_refused() -> None:
        for _ in range(6):
            with pytest.raises(socketio.exceptions.ConnectionError):
                await connect(crew, auth={"token": LOST})

    await is_refused()
    crew.program.signal(signal.SIGHUP)
    await is_refused()
    assert stays.client.connected
    assert [row["principal"] for row in json.loads((await admin("ls", "--json")).out)["keys"]] == ["kept"]
    refused = await admin("rotate", key_id(hash_key(KEPT)))
    assert (refused.code, "the keys file cannot be written" in refused.err) == (1, True)

    entries = json.loads(keys.read_text("utf-8"))
    keys.write_text(json.dumps({hash_key(KEPT): entries[hash_key(KEPT)]}), "utf-8")
    crew.program.signal(signal.SIGHUP)
    await crew.program.stops()


async def test_a_revoked_admin_key_is_refused_at_once_by_all_workers(
    place: Place, unwritable: tuple[Path, Path]
) -> None:
    keys, path = unwritable
    roles = {"boss": "operator", "lost": "viewer"}
    entries = {
        hash_key(key): {"principal": name, "roles": [roles[name]]} for key, name in ((KEPT, "boss"), (LOST, "lost"))
    }
    keys.write_text(json.dumps(entries), "utf-8")
    crew = await Crew.start(place, "--admin-keys-file", str(path))

    async def admin(key: str, *words: str) -> Any:
        return await place.run("key", *words, "--url", crew.url, A2C_ADMIN_KEY=key)

    assert (await admin(LOST, "ls")).code == 0
    revoked = await admin(KEPT, "revoke", key_id(hash_key(LOST)))
    assert LASTS in revoked.err, revoked
    for _ in range(6):
        (await admin(LOST, "ls")).refused(1, "does not accept this admin key")
    await crew.program.stops()


async def test_a_worker_that_is_started_anew_refuses_a_key_that_was_revoked_before(
    place: Place, unwritable: tuple[Path, Path], connect: Any
) -> None:
    _, path = unwritable
    crew = await Crew.start(place, "--keys-file", str(path), "--audit", "audit.jsonl", A2C_SERVER_ADMIN_KEY=ADMIN)
    revoked = await place.run("key", "revoke", key_id(hash_key(LOST)), "--url", crew.url, A2C_ADMIN_KEY=ADMIN)
    assert revoked.code == 0, revoked
    files = sorted(place.folder.glob("audit-*.jsonl"))
    pids = [opened(file)[0] for file in files]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: all(len(opened(file)) == 2 for file in files))

    async def admits(key: str) -> bool:
        try:
            return bool(await connect(crew, auth={"token": key}))
        except socketio.exceptions.ConnectionError:
            return False

    await until_it_goes(lambda: all_new_workers_answer(crew, len(files)))
    assert [await admits(LOST) for _ in range(8)] == [False] * 8
    assert await admits(KEPT)
    await crew.program.stops()


async def all_new_workers_answer(crew: Crew, count: int) -> None:
    seen = set()
    for _ in range(8 * count):
        async with httpx2.AsyncClient() as http:
            ready = (await http.get(f"{crew.url}/readyz")).json()
        assert ready["status"] == "ready"
        seen.add(ready["node"])
    assert len(seen) == count
    assert all(node.endswith("-2") for node in seen)


def opened(file: Path) -> list[int]:
    """The processes that have opened an audit file."""
    return [line["pid"] for line in entries(file, EntryFilter({"event": "audit opened"}))]


async def test_a_node_that_begins_later_refuses_a_key_that_another_one_withholds(
    place: Place, unwritable: tuple[Path, Path], connect: Any
) -> None:
    _, path = unwritable
    with running_valkey() as valkey:
        words = ("server", "--port", "0", "--redis", valkey.url, "--keys-file", str(path))
        first = await place.start(*words, "--node", "first", A2C_SERVER_ADMIN_KEY=ADMIN)
        first.url = await first.listens()
        revoked = await place.run("key", "revoke", key_id(hash_key(LOST)), "--url", first.url, A2C_ADMIN_KEY=ADMIN)
        assert revoked.code == 0, revoked
        assert LASTS in revoked.err, revoked
        await first.stops()
        for name in ("first", "second"):
            node = await place.start(*words, "--node", name)
            node.url = await node.listens()
            with pytest.raises(socketio.exceptions.ConnectionError):
                await connect(node, auth={"token": LOST})
            assert await connect(node, auth={"token": KEPT})
        assert valkey.ask("SMEMBERS", "a2c:withheld") == [key_id(hash_key(LOST))]
