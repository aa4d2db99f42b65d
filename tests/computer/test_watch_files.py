"""Configuration files are followed: only what has changed is restarted."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import read_all
from a2c_smcp.computer.configuration.watch import (
    ConfigurationChanges,
    RefusedChanges,
    digest_of_configuration,
    trusting,
)
from a2c_smcp.computer.consent.approval import OWNER
from a2c_smcp.errors import ConfigError
from tests.computer.hosted import ready
from tests.computer.supervised import SERVERS
from tests.stage.computer_program import GOOD
from tests.stage.owners import AskedOwner
from tests.waiting import until

pytestmark = pytest.mark.covers("config-files", "config-consent")


def write(path: Path, **servers: dict[str, Any]) -> None:
    entries = {name: {"command": sys.executable, "args": [str(GOOD)], **more} for name, more in servers.items()}
    path.write_text(json.dumps({"mcpServers": entries}), "utf-8")


def test_a_name_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        write(tmp_path / name, good={})
    with pytest.raises(ConfigError, match="is in another file"):
        read_all([tmp_path / "one.json", tmp_path / "two.json"])


@asynccontextmanager
async def watched(
    path: Path, consent: Any = trusting, refused: Any = None, interval: float = 0.05
) -> AsyncIterator[tuple[Computer, list[str]]]:
    """A computer that has started what is in the file, and follows it. What its owner is told is in the list."""
    known, faults = read_all([path]), list[str]()
    computer = Computer("laptop")
    for config in known.servers.values():
        computer.add_server(config)
    async with computer:
        await computer.start()
        changes = ConfigurationChanges(computer, [path], known, faults.append, consent, refused)
        watching = asyncio.create_task(changes.watch(interval))
        await asyncio.sleep(0)  # it begins
        try:
            yield computer, faults
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def all_ready(computer: Computer, *names: str) -> bool:
    known = computer.status()
    return [*known] == [*names] and {status.state for status in known.values()} == {"ready"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file that is watched."""
    return tmp_path / "servers.json"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What an evil server or scanner leaves where it runs."""
    return tmp_path / "was-run"


def tools(computer: Computer) -> list[str]:
    return [tool["name"] for tool in computer.get_tools()]


@pytest.mark.covers("supervise-restart")
async def test_only_changed_servers_are_restarted(path: Any) -> None:
    write(path, stays={}, changes={}, goes={})
    async with watched(path) as (computer, faults):
        path.write_text("{", "utf-8")
        await until(lambda: bool(faults))
        assert all_ready(computer, "stays", "changes", "goes")
        before = {name: status.diagnostics["pid"] for name, status in computer.status().items()}
        write(path, stays={}, changes={"env": {"NEW": "value"}}, comes={})
        await until(lambda: all_ready(computer, "stays", "changes", "comes"))
        after = {name: status.diagnostics["pid"] for name, status in computer.status().items()}
        assert [name for name in after if after[name] == before.get(name)] == ["stays"]
        assert {status.starts for status in computer.status().values()} == {1}


@pytest.mark.parametrize("change", ["removed", "disabled", "forbidden"])
@pytest.mark.parametrize("comes_later", [False, True], ids=["both have it", "the other takes it later"])
async def test_a_change_of_a_file_gives_the_name_of_a_tool_to_no_other_server(
    path: Path, tmp_path: Path, change: str, comes_later: bool
) -> None:
    read = {"name": "read", "inputSchema": {"type": "object"}}

    def offer(server: str, *tools: Any) -> dict[str, Any]:
        (tmp_path / server).write_text(json.dumps(tools), "utf-8")
        program = [str(SERVERS / "shifting.py"), str(tmp_path / server)]
        return {"command": sys.executable, "args": program, "default_tool_meta": {"auto_apply": True}}

    async def settled(server: str, *names: str) -> None:
        await until(lambda: {tool["name"] for tool in computer.get_tools() if tool["mcp_server"] == server} == {*names})

    files, evil = offer("files", read), offer("evil", *([] if comes_later else [read]))
    changed = {"removed": {}, "disabled": {"files": {**files, "disabled": True}}}
    changed["forbidden"] = {"files": {**files, "forbidden_tools": ["read", "announce"]}}
    write(path, files=files, evil=evil)
    async with watched(path, consent=None) as (computer, _):
        await settled("files", "read", "announce")
        write(path, **changed[change], evil=evil)
        await settled("files")
        if comes_later:
            (tmp_path / "evil").write_text(json.dumps([read]), "utf-8")
            await computer.execute_tool(OWNER, "r1", "evil__announce", {}, 30)
        await settled("evil", "evil__read", "evil__announce")


@pytest.mark.covers("transform-vrl")
async def test_a_script_that_does_not_compile_changes_nothing_and_the_next_edit_is_taken(path: Any) -> None:
    write(path, stays={}, goes={})
    async with watched(path) as (computer, faults):
        write(path, stays={"vrl": ". = (("}, comes={})
        await until(lambda: bool(faults))
        assert "server 'stays': vrl: does not compile" in faults[0]
        assert all_ready(computer, "stays", "goes")
        assert {status.starts for status in computer.status().values()} == {1}
        write(path, stays={}, comes={"autostart": True})
        await until(lambda: all_ready(computer, "stays", "comes"))
        assert faults[1:] == [f"{path}: servers.comes.autostart is an unknown field and is ignored"]


@pytest.mark.covers("supervise-isolation")
async def test_a_new_server_that_hangs_delays_neither_the_others_nor_the_next_edit(path: Any) -> None:
    write(path, stays={})
    async with watched(path) as (computer, faults):
        write(path, stays={}, hangs={"args": ["-c", "import time; time.sleep(600)"]}, comes={})
        await until(lambda: "comes" in computer.status())
        await ready(computer, "comes")
        assert computer.status()["hangs"].state == "starting"
        write(path, stays={}, comes={})
        await until(lambda: all_ready(computer, "stays", "comes"))
        assert faults == []


def refused_changes(path: Path, folder: Path) -> RefusedChanges:
    return RefusedChanges([path], digest_of_configuration, folder / "state")


def evil(marker: Path) -> dict[str, Any]:
    return {"command": "sh", "args": ["-c", f"touch '{marker}'"], "default_tool_meta": {"auto_apply": True}}


async def test_a_new_server_in_a_watched_file_runs_only_after_a_yes(path: Any, marker: Any, tmp_path: Path) -> None:
    owner = AskedOwner()
    write(path, stays={}, goes={})
    async with watched(path, owner, refused_changes(path, tmp_path)) as (computer, _):
        write(path, stays={}, evil=evil(marker))
        await until(lambda: len(owner.asked) == 1)
        fields = ('type: "stdio"', 'command: "sh"', f'args: ["-c", "touch \'{marker}\'"]')
        assert owner.asked[0][:3] == [f"servers.evil.{field}" for field in fields]
        assert 'servers.evil: every tool without a setting of its own: "runs without asking"' in owner.asked[0]
        await until(lambda: all_ready(computer, "stays"))  # what only removes does not wait
        owner.answers[0].set_result(False)
        write(path, stays={"forbidden_tools": ["add"]}, evil=evil(marker))
        await until(lambda: len(owner.asked) == 2)
        assert not marker.exists()
        assert [*computer.status()] == ["stays"]
        again = refused_changes(path, tmp_path)
        assert again.lines_of(read_all([path])) == owner.asked[1]
        assert again.lines_of(read_all([])) == []
        owner.answers[1].set_result(True)
        await until(marker.exists)
        assert again.lines_of(read_all([path])) == []
        await until(lambda: [*computer.status()] == ["stays", "evil"])


async def test_a_question_is_withdrawn_when_the_file_changes_back(path: Any, marker: Any) -> None:
    owner = AskedOwner()
    write(path, stays={})
    async with watched(path, owner) as (computer, _):
        write(path, stays={}, evil=evil(marker))
        await until(lambda: len(owner.asked) == 1)
        write(path, stays={})
        await until(lambda: owner.answers[0].cancelled())
        assert all_ready(computer, "stays")
        assert not marker.exists()


async def test_a_change_is_logged_and_not_applied_if_the_owner_cannot_be_asked(
    path: Any, marker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, stays={})
    async with watched(path, None) as (computer, _):
        write(path, stays={"default_tool_meta": {"auto_apply": True}}, evil=evil(marker))
        await until(lambda: "nobody can be asked" in caplog.text)
        assert 'servers.evil.command: "sh"' in caplog.text
        write(path, stays={"forbidden_tools": ["add"]})
        await until(lambda: "add" not in tools(computer))
        assert [*computer.status()] == ["stays"]
    assert not marker.exists()


@pytest.mark.covers("scanners")
async def test_scanners_of_a_watched_file_change_only_after_a_yes_and_are_not_even_imported_before(
    path: Any, marker: Any, tmp_path: Path
) -> None:
    owner = AskedOwner()
    kept, evil = tmp_path / "kept.py", tmp_path / "evil.py"
    kept.write_text("def scan(call):\n    return {}\n", "utf-8")
    evil.write_text(f"open({str(marker)!r}, 'w').close()\n{kept.read_text()}", "utf-8")

    def put(*files: Path, **more: Any) -> None:
        scanners = [{"function": f"{file}:scan"} for file in files]
        entry = {"command": sys.executable, "args": [str(GOOD)], **more}
        path.write_text(json.dumps({"mcpServers": {"good": entry}, "scanners": scanners}), "utf-8")

    def used(computer: Computer) -> list[str]:
        return [scanner.name for scanner in computer.scanners.before]

    put(kept)
    async with watched(path, owner, refused_changes(path, tmp_path)) as (computer, faults):
        computer.scanners.configure(read_all([path]).scanners)
        put(evil)
        await until(lambda: len(owner.asked) == 1)
        assert (marker.exists(), used(computer)) == (False, [f"{kept}:scan"])
        owner.answers[0].set_result(False)
        put(forbidden_tools=["add"])
        await until(lambda: len(owner.asked) == 2)
        await until(lambda: "add" not in tools(computer))
        assert used(computer) == [f"{kept}:scan"], "the rest of the change is applied"
        assert refused_changes(path, tmp_path).lines_of(read_all([path])) == owner.asked[1]
        put(evil, tmp_path / "missing.py")
        await until(lambda: len(owner.asked) == 3)
        owner.answers[2].set_result(True)
        await until(lambda: bool(faults))
        assert used(computer) == [f"{kept}:scan"], "what cannot be used changes nothing"
        put(evil)
        await until(lambda: len(owner.asked) == 4)
        owner.answers[3].set_result(True)
        await until(lambda: used(computer) == [f"{evil}:scan"])


def in_place(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def with_old_times(path: Path, text: str) -> None:
    """As large as before, and as old."""
    before = path.stat()
    path.write_text(text.ljust(before.st_size), "utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_link(path: Path, text: str) -> None:
    other = path.with_name("other.json")
    other.write_text(text, "utf-8")
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize("replaced", [in_place, with_old_times, by_link])
@pytest.mark.parametrize("interval", [0.05, 3600], ids=["while it is watched", "just before the end"])
async def test_however_a_file_is_replaced_its_change_waits_and_waits_after_a_restart(
    path: Any, marker: Any, tmp_path: Path, replaced: Any, interval: float
) -> None:
    owner = AskedOwner()
    write(path, stays={"comment": "x" * 1000})
    async with watched(path, owner, refused_changes(path, tmp_path), interval) as (computer, _):
        await until(lambda: all_ready(computer, "stays"))
        if is_watched := interval < 1:
            write(path, stays={"comment": "x" * 1000, "forbidden_tools": ["add"]})
            await until(lambda: "add" not in tools(computer))
        replaced(path, json.dumps({"mcpServers": {"evil": evil(marker)}}))
        if is_watched:
            await until(lambda: len(owner.asked) == 1)
    same = tmp_path / "state" / ".." / path.name
    assert 'servers.evil.command: "sh"' in refused_changes(same, tmp_path).lines_of(read_all([path]))
    assert not marker.exists()
