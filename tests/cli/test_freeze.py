"""`a2c-smcp freeze` and `thaw`, for the operator of a Server and for the owner of this machine."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from a2c_smcp.cli.serving.mounts import freezes_file
from a2c_smcp.files import default_folder
from a2c_smcp.server.auth.api_keys import hash_key
from tests.conftest import Hub, Seat
from tests.peer import Peer
from tests.stage.calls import Gate, running_call
from tests.stage.operators import ADMIN, freeze
from tests.stage.place import Ended, Place
from tests.stage.program import Starts, starts

pytestmark = pytest.mark.covers("freeze")
__all__ = ["starts"]

Run = Callable[..., Awaitable[Ended]]


@pytest.fixture
async def hub(serve: Callable[..., Any], tmp_path: Path) -> Hub:
    hub: Hub = await serve(admin_key=ADMIN, freezes=tmp_path / "freezes.json")
    return hub


@pytest.fixture
async def desk(hub: Hub, seat: Seat) -> tuple[Peer, Peer]:
    """An agent and a computer in the office `desk`."""
    return await seat("agent", "planner", "desk", hub=hub), await seat("computer", "laptop", "desk", hub=hub)


@pytest.fixture
def run(place: Place, hub: Hub) -> Run:
    async def run(*words: str, **environ: str) -> Ended:
        return await place.run(*words, **{"A2C_URL": hub.url, "A2C_ADMIN_KEY": ADMIN, "COLUMNS": "200", **environ})

    return run


async def test_everything_stops_and_goes_on_when_a_person_says_so(run: Run, desk: tuple[Peer, Peer]) -> None:
    agent, computer = desk
    call = await running_call(agent, computer, Gate(), timeout=60)
    ended = await run("freeze", "--all", "--reason", "an incident")
    assert (ended.code, "the whole Server is frozen, 1 computer" in ended.err) == (0, True)
    assert (await call)["code"] == 499
    assert (await agent.call_tool("laptop"))["details"]["reason"] == "an incident"
    listed = json.loads((await run("freeze", "--list", "--json")).out)["freezes"]
    assert [(row["office"], row["reason"]) for row in listed] == [(None, "an incident")]
    assert "an incident" in (await run("freeze", "--list")).out
    await run("freeze", "--office", "desk")
    assert "still frozen: office 'desk'" in (await run("thaw", "--all")).err
    assert (await run("thaw", "--office", "desk")).code == 0
    assert "nothing is frozen" in (await run("freeze", "--list")).err


async def test_a_computer_is_found_by_its_name_if_one_office_has_it(
    run: Run, hub: Hub, seat: Seat, desk: tuple[Peer, Peer]
) -> None:
    changed = json.loads((await run("freeze", "--computer", "laptop", "--json")).out)
    assert (changed["freeze"]["office"], changed["computers"]) == ("desk", 1)
    await desk[1].ask("server:leave_office", {"office_id": "desk"})
    assert "computer 'laptop' of office 'desk' is thawed" in (await run("thaw", "--computer", "laptop")).err
    (await run("freeze", "--computer", "laptop")).refused(1, "is in no office now", "--office")
    for office in ("desk", "den"):
        await seat("computer", "tablet", office, hub=hub)
    (await run("freeze", "--computer", "tablet")).refused(1, "den, desk", "--office")
    assert (await run("freeze", "--computer", "tablet", "--office", "den")).code == 0


async def test_an_office_without_members_can_be_frozen_with_a_note(run: Run) -> None:
    ended = await run("freeze", "--office", "nowhere")
    assert (ended.code, "none is there now" in ended.err) == (0, True)


async def test_wrong_use_says_what_to_do(run: Run) -> None:
    (await run("freeze", "--all", "--office", "desk")).refused(2, "--all")
    (await run("thaw", "--office", "")).refused(2, "empty")
    (await run("thaw", "--name", "laptop", "--office", "desk")).refused(2, "--name")
    (await run("freeze", "--all", A2C_ADMIN_KEY="")).refused(2, "--admin-key")
    (await run("thaw", "--office", "desk")).refused(1, "not frozen")
    (await run("freeze", "--office", "a\nb")).refused(1, "office")
    (await run("freeze", "--all", A2C_ADMIN_KEY="wrong-0123456789abc")).refused(1, "admin key")


async def test_an_office_of_the_environment_is_not_frozen_by_mistake(run: Run, desk: tuple[Peer, Peer]) -> None:
    await run("freeze", A2C_OFFICE="desk")
    assert json.loads((await run("freeze", "--list", "--json")).out) == {"freezes": []}


async def test_without_an_office_it_is_this_machine(run: Run) -> None:
    frozen = await run("freeze", "--name", "laptop", "--reason", "an \x1b[31mincident")
    assert (frozen.code, "computer 'laptop' of this machine is frozen" in frozen.err) == (0, True)
    assert json.loads((await run("freeze", "--json")).out) == {"frozen": ["laptop"]}
    assert json.loads((await run("thaw", "--json")).out) == {"thawed": ["laptop"]}
    assert "no computer of this machine is frozen" in (await run("thaw")).err


@pytest.mark.one_process
async def test_a_server_does_not_start_with_a_state_folder_that_cannot_be_used(place: Place) -> None:
    for words in ((), ("--admin-key", ADMIN)):
        folder = place.state / default_folder().name
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        (await place.run("server", "--port", "0", *words)).refused(1, "frozen", str(folder))
        rmtree(folder)
        folder.touch()
        (await place.run("server", "--port", "0", *words)).refused(1, "frozen", str(folder))
        folder.unlink()


def test_without_a_place_for_a_state_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert [freezes_file("http://127.0.0.1:1", has_operators=wanted) for wanted in (True, False)] == [None, None]


async def test_a_server_with_a_file_of_admin_keys_keeps_what_is_frozen(starts: Starts, tmp_path: Path) -> None:
    keys = tmp_path / "admin-keys.json"
    keys.write_text(json.dumps({hash_key(ADMIN): {"principal": "boss", "roles": ["operator"]}}), "utf-8")
    keys.chmod(0o600)
    server = await starts("--admin-keys-file", keys, XDG_STATE_HOME=str(tmp_path / "state"))
    assert (await freeze(server.url, office="desk"))["unkept"] == ""
