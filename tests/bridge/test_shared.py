"""Several stdio bridges of one user in one office: the first serves the clients of all, and can end at any time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.files import lock
from tests.on_disk import mode_of
from tests.stage.bridge import BridgedOffice, all_tools, subscribed, until_listed
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import INITIALIZE
from tests.stage.texts import text_of
from tests.stage.windows import (
    Heard,
    Window,
    alone,
    connected,
    holder,
    holder_files,
    holders,
    is_left,
    is_open,
    windows,
)
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-shared")

UNKNOWN = {"code": 503, "outcome": "unknown"}
THREE = ("Ada", "Bob", "Eve")


async def added(window: Window, a: int, b: int) -> Any:
    client = await window.opened()
    await all_tools(client)
    return (await client.call_tool("add", {"a": a, "b": b})).structured_content


@pytest.mark.parametrize("client", ["claude-code", "cursor"])
async def test_three_windows_with_the_entry_of_connect_list_and_call_at_once(
    bridged: BridgedOffice, client: str, mode: Any
) -> None:
    async with windows(bridged, await connected(bridged, client), mode, *THREE) as found:
        lists = [await all_tools(await each.opened()) for each in found]
        assert lists[0].keys() == lists[1].keys() == lists[2].keys()
        sums = await asyncio.gather(*(added(each, 1, number) for number, each in enumerate(found)))
        assert sums == [{"result": 1}, {"result": 2}, {"result": 3}]
        first = await holder(bridged)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.gather(*(added(each, 4, 2) for each in found[1:])) == [{"result": 6}] * 2
        assert await holder(bridged, other_than=first) != first


async def test_clients_go_on_when_the_first_is_killed_and_open_calls_are_unknown(
    bridged: BridgedOffice, mode: Any
) -> None:
    async with windows(bridged, bridged.stdio(), mode, *THREE) as (_, *others):
        clients = [await each.opened() for each in others]
        calls = [await bridged.waiting(each, str(number)) for number, each in enumerate(clients)]
        os.kill(await holder(bridged), signal.SIGKILL)
        for lost in await asyncio.gather(*calls):
            assert (lost.is_error, lost.meta["a2c_error"]) == (True, UNKNOWN)
            assert "Whether the tool has run is not known." in text_of(lost)
        for each in others:
            client = await each.opened()
            await all_tools(client)
            assert text_of(await client.call_tool("greet", {})) == f"hi {each.heard.name}, asked 'Who are you?'"
        assert sorted(bridged.noted()).count("begun 0") == 1


async def test_clients_go_on_when_the_first_closes_one_after_the_other(bridged: BridgedOffice, mode: Any) -> None:
    async with windows(bridged, bridged.stdio(), mode, *THREE) as found:
        for number, window in enumerate(found):
            assert [await added(each, number, 1) for each in found[number:]] == [{"result": number + 1}] * (3 - number)
            await window.close()
    assert holder_files(bridged) == []


async def test_five_that_start_at_the_same_moment_find_each_other_and_leave_nothing(
    bridged: BridgedOffice, mode: Any
) -> None:
    found = [Window(bridged, bridged.stdio(), mode, Heard()) for _ in range(5)]
    assert await asyncio.gather(*(added(each, n, 1) for n, each in enumerate(found))) == [
        {"result": n + 1} for n in range(5)
    ]
    (held,) = holders(bridged)
    assert is_open(held)
    await asyncio.gather(*(each.close() for each in found))
    assert holder_files(bridged) == []
    assert not is_left(held)


async def test_what_a_client_listens_to_goes_on_at_the_next_bridge(bridged: BridgedOffice) -> None:
    uri = "notes://page"
    async with windows(bridged, bridged.stdio(), "legacy", "Ada", "Bob") as (_, second):
        client = await second.opened()
        await until_listed(client, uri)
        await subscribed(client, uri)
        os.kill(await holder(bridged), signal.SIGKILL)
        await until(lambda: uri in second.heard.updated)  # it may have changed meanwhile
        second.heard.messages.clear()
        await all_tools(client)
        await client.call_tool("write", {"text": "second"})
        await until(lambda: uri in second.heard.updated)
        await client.call_tool("grow", {"name": "newcomer"})
        await until(lambda: second.heard.list_changes)


async def test_the_streams_of_a_newer_client_go_on_at_the_next_bridge(bridged: BridgedOffice) -> None:
    uri = "notes://page"
    async with windows(bridged, bridged.stdio(), "auto", "Ada", "Bob") as (_, second):
        client = await second.opened()
        await until_listed(client, uri)
        async with client.listen(resource_subscriptions=[uri]) as news:
            events = aiter(news)
            os.kill(await holder(bridged), signal.SIGKILL)
            assert (await anext(events)).uri == uri  # type: ignore[union-attr]  # it may have changed meanwhile
            await all_tools(client)
            await client.call_tool("write", {"text": "second"})
            assert (await anext(events)).uri == uri  # type: ignore[union-attr]


# Who gets in


KEYS = {"key-of-ann-0123456789": "ann", "key-of-ben-0123456789": "ben"}


async def status(window: Window) -> str:
    return text_of(await (await window.opened()).call_tool("office_status", {}))


@pytest.fixture
async def guarded(empty: BridgedOffice) -> BridgedOffice:
    """A Server with two keys, and a computer."""
    await empty.start_server("--keys-file", str(write_keys(empty.place.folder, KEYS)))
    await empty.start_computer(A2C_API_KEY=next(iter(KEYS)))
    return empty


async def test_another_key_is_kept_apart_and_told_why(guarded: BridgedOffice, mode: Any) -> None:
    ann, ben = (guarded.stdio("--api-key", key) for key in KEYS)
    async with windows(guarded, ann, mode, "Ann", "Ann again"), alone(guarded, ben, mode) as other:
        assert "has an agent already" in await status(other)
        assert "the same key, --url, --office and --name" in await status(other)
        assert len(holders(guarded)) == 2
        texts = "".join(file.read_text() for file in holder_files(guarded))
        assert [key for key in KEYS if key in texts] == []


async def test_other_offices_names_and_ways_to_the_server_are_kept_apart(bridged: BridgedOffice) -> None:
    ways = ["--office", "lab"], ["--name", "other"], ["--e2e", "prefer"]
    async with windows(bridged, bridged.stdio(), "auto", "Ada"), AsyncExitStack() as stack:
        found = [await stack.enter_async_context(alone(bridged, bridged.stdio(*way), "auto")) for way in ways]
        assert "There is no computer in the office 'lab'" in await status(found[0])
        for each in found[1:]:
            assert "has an agent already" in await status(each)
        assert len(holders(bridged)) == 1 + len(ways)
        await bridged.start_computer("--office", "lab", "--name", "bench")
        await all_tools(await found[0].opened())


async def test_who_does_not_show_the_identity_is_told_nothing(bridged: BridgedOffice) -> None:
    async with windows(bridged, bridged.stdio(), "auto", "Ada") as (first,):
        (held,) = holders(bridged)
        good = {"catalog": {}, "timeout": 60}
        hellos = ({**good, "proof": "0" * 32}, {**good, "proof": holder_files(bridged)[0].stem}, good, [], "x" * 70_000)
        for hello in hellos:
            reader, writer = await asyncio.open_unix_connection(held["socket"])
            writer.write(f"{json.dumps(hello)}\n{json.dumps(INITIALIZE)}\n".encode())
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert await added(first, 1, 2) == {"result": 3}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_is_shut_out_by_the_folder_and_by_the_system(bridged: BridgedOffice) -> None:
    async with windows(bridged, bridged.stdio(), "auto", "Ada") as (first,):
        (held,) = holders(bridged)
        path = Path(held["socket"])
        assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o600)
        assert mode_of(holder_files(bridged)[0]) == 0o600
        assert await as_another_user(path) == "PermissionError"
        set_modes(path, 0o755, 0o666)
        assert await as_another_user(path) == "b''"
        set_modes(path, 0o700, 0o600)
        assert await added(first, 1, 2) == {"result": 3}


def set_modes(path: Path, folder: int, socket: int) -> None:
    path.parent.chmod(folder)
    path.chmod(socket)


async def as_another_user(path: Path) -> str:
    """What another user gets at the socket."""
    script = f"""
import os, socket
os.setuid(65534)
door = socket.socket(socket.AF_UNIX)
try:
    door.connect({str(path)!r})
    print(door.recv(100))
except OSError as error:
    print(type(error).__name__)
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=PIPE)
    out, _ = await process.communicate()
    return out.decode().strip()


async def test_a_place_that_others_made_is_never_connected_to(bridged: BridgedOffice, tmp_path: Path) -> None:
    """A killed holder left a file; meanwhile the folder that it names belongs to somebody else, or to nobody."""
    async with windows(bridged, bridged.stdio(), "auto", "Ada"):
        (file,) = holder_files(bridged)
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o755)
    got: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(100))

    async with await asyncio.start_unix_server(accept, trap / "bridge"):
        file.write_text(json.dumps({"pid": 1, "socket": str(trap / "bridge")}))
        with file.open("rb") as stopped:  # somebody holds the lock and shows no life
            assert lock(stopped.fileno())
            async with windows(bridged, bridged.stdio(), "auto", "Ada") as (first,):
                assert await added(first, 1, 2) == {"result": 3}
    assert got == []
    assert trap.exists()


# What is left, and what goes on


async def test_what_a_killed_holder_has_left_is_removed_by_the_next(guarded: BridgedOffice) -> None:
    ann, ben = (guarded.stdio("--api-key", key) for key in KEYS)
    async with windows(guarded, ann, "auto", "Ann"):
        (held,) = holders(guarded)
        os.kill(held["pid"], signal.SIGKILL)
    assert is_left(held)
    async with windows(guarded, ben, "auto", "Ben"):
        assert [found["pid"] != held["pid"] for found in holders(guarded)] == [True]
        assert not is_left(held)
    assert holder_files(guarded) == []


async def test_a_first_one_that_stands_still_is_replaced_and_follows_when_it_goes_on(
    bridged: BridgedOffice, mode: Any
) -> None:
    async with windows(bridged, bridged.stdio(), mode, *THREE) as (first, *others):
        stopped = await holder(bridged)
        calling = await bridged.waiting(await others[0].opened(), "bob")
        os.kill(stopped, signal.SIGSTOP)
        try:
            lost: Any = await calling
            assert (lost.is_error, lost.meta["a2c_error"]) == (True, UNKNOWN)
            assert await asyncio.gather(*(added(each, 1, 2) for each in others)) == [{"result": 3}] * 2
            assert await holder(bridged, other_than=stopped) != stopped
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert await added(first, 1, 3) == {"result": 4}
        assert len(holders(bridged)) == 1


@pytest.mark.parametrize("has_third", [False, True])
async def test_windows_whose_key_was_replaced_find_each_other_again(
    empty: BridgedOffice, mode: Any, has_third: bool
) -> None:
    """Two have started with a key that is wrong, a third one with the key that is right."""
    right, file = next(iter(KEYS)), empty.place.folder / "the key"
    await empty.start_server("--keys-file", str(write_keys(empty.place.folder, KEYS)))
    await empty.start_computer(A2C_API_KEY=right)
    file.write_text("a-wrong-key-0123456789")
    where = empty.stdio("--key-file", str(file))
    async with alone(empty, where, mode) as first, alone(empty, where, mode) as second:
        assert [f"does not accept the key in {file}" in await status(each) for each in (first, second)] == [True] * 2
        file.write_text(right)
        if not has_third:
            assert await asyncio.gather(added(first, 1, 2), added(second, 1, 2)) == [{"result": 3}] * 2
            assert len(holders(empty)) == 1
            return
        async with windows(empty, where, mode, "Ann") as (third,):
            found = await asyncio.gather(*(added(each, 1, 2) for each in (first, second, third)))
            assert found == [{"result": 3}] * 3
            assert len(holders(empty)) == 1


async def test_each_window_has_the_options_of_its_own_entry(bridged: BridgedOffice, mode: Any) -> None:
    searching = bridged.stdio("--search-above", "3")
    async with windows(bridged, bridged.stdio(), mode, "Ada") as (first,), alone(bridged, searching, mode) as second:
        client = await second.opened()
        assert {tool.name for tool in (await client.list_tools()).tools} == {"search_tools", "call_tool", "get_desktop"}
        assert len(await all_tools(await first.opened())) > 3
        called = await client.call_tool("call_tool", {"name": "add", "arguments": {"a": 1, "b": 2}})
        assert called.structured_content == {"result": 3}
        assert len(holders(bridged)) == 1


@pytest.mark.parametrize("fault", ["no temporary folder", "a file of another user"])
async def test_where_nothing_can_be_shared_a_bridge_works_alone(bridged: BridgedOffice, fault: str) -> None:
    where = bridged.stdio()
    async with windows(bridged, where, "auto", "Ada"):
        (file,) = holder_files(bridged)
    if fault == "a file of another user":
        file.mkdir()  # what can be opened no more than that, also by root
    else:
        where = bridged.stdio(TMPDIR=str(bridged.place.folder / ("x" * 100)))
        (bridged.place.folder / ("x" * 100)).mkdir()
    async with windows(bridged, where, "auto", "Ada") as (first,), alone(bridged, where, "auto") as second:
        assert await added(first, 1, 2) == {"result": 3}
        assert "has an agent already" in await status(second)
