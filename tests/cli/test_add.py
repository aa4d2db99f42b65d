"""`a2c-smcp add`, `update`, `remove`, `list`: files that keep their shape, and packages of an index on this machine."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.configuration.files import loads, read_configuration
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import managed, text_of
from tests.stage.cases import cases
from tests.stage.place import Ended, Place
from tests.stage.registries import Registries, registries
from tests.waiting import until

pytestmark = pytest.mark.covers("add")
needs_sandbox = pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports")


@pytest.fixture
def index() -> Iterator[Registries]:
    with registries() as served:
        yield served


async def run(place: Place, index: Registries | None, *words: str, code: int = 0) -> Ended:
    environ = index.environ if index else {}
    ended = await place.run(*words, **environ)
    assert "Traceback" not in ended.err
    assert ended.code == code, ended
    return ended


def entries(place: Place, name: str = "a2c.json") -> dict[str, Any]:
    found: dict[str, Any] = loads((place.folder / name).read_text("utf-8"))["servers"]
    return found


def left(place: Place) -> list[str]:
    """What is in the folder of installed servers."""
    folder = place.folder / "data" / "a2c-smcp" / "servers"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def called(place: Place, server: str, tool: str, file: str = "a2c.json", **given: str) -> str:
    """The answer of a tool of a server that a computer would start."""
    config = read_configuration(place.folder / file).servers[server]
    async with managed(config) as (manager, _, _events):
        assert manager.status()[server].state == "ready", manager.status()[server].reason
        return text_of(await manager[server].requests.call_tool(ToolRequest(tool, given, 60)))


# From an index to a server that answers


@needs_sandbox
async def test_one_line_makes_a_pinned_and_sandboxed_server_that_answers(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0")
    ended = await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server", "--zone", "{data}/zones")
    home = place.folder / "data" / "a2c-smcp" / "servers" / "clock"
    for words in ("clock-server 1.2.0, from PyPI", "Ann (as the package says)", "network:   none", "tools: 4"):
        assert words in ended.err
    entry = entries(place)["clock"]
    assert entry["command"] == str(home / "1.2.0/venv/bin/python")
    assert entry["args"] == [str(home / "1.2.0/venv/bin/clock-server"), "--zone", f"{home}/data/zones"]
    assert entry["sandbox"] == {"write": [str(home / "data")]}
    assert await called(place, "clock", "words") == f"--zone {home}/data/zones"
    assert await called(place, "clock", "home") == f"{home / 'data'} {home / 'data'}"
    assert left(place) == ["clock"], "no draft is left"


@needs_sandbox
async def test_a_server_writes_to_its_data_and_to_what_is_named_and_reads_nothing_of_others(
    place: Place, index: Registries
) -> None:
    index.pypi("clock-server", "1.2.0")
    for name in ("mine", "named"):
        (place.folder / name).mkdir()
        (place.folder / name / "note").write_text("private")
    named = str(place.folder / "named")
    await run(place, index, "add", "clock", "--yes", "--write", named, "--", "uvx", "clock-server")
    await run(place, index, "add", "other", "--yes", "--", "uvx", "clock-server")
    servers = place.folder / "data" / "a2c-smcp" / "servers"
    assert await called(place, "clock", "write", path=str(servers / "clock/data/new")) == "1"
    assert await called(place, "clock", "write", path=f"{named}/new") == "1"
    refused = (place.folder / "mine/note", place.folder / "a2c.json", servers / "clock/data/new")
    for server, path in zip(("clock", "clock", "other"), refused, strict=True):
        assert "denied" in await called(place, server, "read", path=str(path))
    own = servers / "clock/1.2.0/installed.json"
    assert "denied" in await called(place, "clock", "write", path=str(own)), "its own package is not its to change"


@needs_sandbox
async def test_a_link_in_the_data_folder_leads_nowhere_at_the_next_start(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0")
    await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server")
    (place.folder / "mine").mkdir()
    (place.folder / "mine" / "note").write_text("private")
    data = place.folder / "data/a2c-smcp/servers/clock/data"
    (data / ".nvm").symlink_to(place.folder / "mine")  # every server may read ~/.nvm, and its home is its data folder
    assert "denied" in await called(place, "clock", "read", path=str(place.folder / "mine" / "note"))


@needs_sandbox
async def test_a_program_that_is_gone_is_failed_at_once_with_the_remedy(
    place: Place, index: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(place.folder / "data"))
    index.pypi("clock-server", "1.2.0")
    await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server")
    entry = entries(place)["clock"]
    config = read_configuration(place.folder / "a2c.json").servers["clock"]
    for gone, said in ((Path(entry["args"][0]), "is gone"), (Path(entry["command"]), "does not exist")):
        gone.unlink()
        async with managed(config) as (manager, _, _events):
            status = manager.status()["clock"]
            assert (status.state, status.fault, said in status.reason) == ("failed", "command", True), status


async def test_a_checksum_that_differs_from_the_stated_one_installs_nothing(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0", checksum="0" * 64)
    ended = await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server", code=1)
    assert "has another checksum than PyPI states" in ended.err
    assert not left(place)
    assert not (place.folder / "a2c.json").exists()


@needs_sandbox
async def test_uvx_with_another_requirement_and_another_program_is_understood(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0", program="tick")
    for version in ("1.0", "2.0"):
        index.pypi("wheels", version)
    words = ("uvx", "--with", "wheels<2", "--from", "clock-server", "tick", "word")
    ended = await run(place, index, "add", "clock", "--yes", "--", *words)
    assert "packages:  2, each with its checksum" in ended.err
    assert await called(place, "clock", "words") == "word"
    wanted = (place.folder / "data/a2c-smcp/servers/clock/1.2.0/requirements.txt").read_text().split("\n")
    assert [line.partition(" ")[0] for line in wanted if line] == ["clock-server==1.2.0", "wheels==1.0"]


async def test_a_package_that_needs_one_from_elsewhere_is_refused(place: Place, index: Registries) -> None:
    index.pypi("other", "1.0")
    index.pypi("clock-server", "1.2.0", needs=f"other @ {index.url}/files/other-1.0-py3-none-any.whl")
    ended = await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server", code=1)
    assert "clock-server needs other from outside of PyPI" in ended.err
    assert not left(place)


@pytest.mark.parametrize("package", ["clock-server", "@makers/clock"])
async def test_a_package_that_describes_itself_wrongly_is_refused(
    place: Place, index: Registries, package: str
) -> None:
    index.pypi("clock-server", "1.2.0", program="../../evil")
    index.npm("@makers/clock", "1.2.0", bin=["evil"])
    starter = "npx" if package.startswith("@") else "uvx"
    ended = await run(place, index, "add", "clock", "--yes", "--", starter, package, code=1)
    assert f"{package} is not described as packages are" in ended.err
    assert not left(place)


async def test_without_a_terminal_nothing_is_installed_unless_yes_is_said(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0")
    ended = await run(place, index, "add", "clock", "--", "uvx", "clock-server", code=2)
    assert "There is no terminal to ask on, and nothing was done. --yes does it without a question." in ended.err
    assert not left(place)


async def test_a_server_that_does_not_start_is_not_added(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0", tools=())
    (place.folder / "data").mkdir()
    ended = await run(
        place, index, "add", "clock", "--yes", "--env", "PYTHONHOME=/nowhere", "--", "uvx", "clock-server", code=1
    )
    assert "clock does not start" in ended.err
    assert not left(place)
    assert not (place.folder / "a2c.json").exists()


async def test_ctrl_c_leaves_nothing_half_installed(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.2.0")
    program = await place.start("add", "clock", "--yes", "--", "uvx", "clock-server", **index.environ)
    await until(lambda: bool(left(place)))
    program.process.send_signal(signal.SIGINT)
    assert await program.process.wait() == 1
    assert not left(place)
    assert not (place.folder / "a2c.json").exists()


# Wrong words


@cases(
    "words, said",
    (["add", "x"], "Say where the MCP server comes from, once"),
    (["add", "x", "--url", "http://h/mcp", "--", "uvx", "y"], "Say where the MCP server comes from"),
    (["add", "x", "--", "docker", "run", "y"], "docker is not npx or uvx"),
    (["add", "x", "--", "uvx", "git+https://h/y"], "is not the name of a package of PyPI"),
    (["add", "x", "--", "uvx", "--with", "./z", "y"], "is not the name of a package of PyPI"),
    (["add", "x", "--", "npx", "-y", "./y"], "is not the name of a package of npm"),
    (["add", "x", "--", "npx", "--registry=http://h", "y"], "npx --registry means nothing"),
    (["add", "x", "--", "npx", "-y"], "npx names no package"),
    (["add", "x", "--network", "api.example:443", "--", "uvx", "y"], "does not tell hosts apart"),
    (["add", "x", "--network", "99999", "--", "uvx", "y"], "not a port"),
    (["add", "x", "--read", "/no/where", "--", "uvx", "y"], "/no/where does not exist"),
    (["add", "x", "--env", "TOKEN", "--", "uvx", "y"], "not NAME=VALUE"),
    (["add", "a\nb", "--yes", "--", "uvx", "y"], "must not"),
    (["add", "x", "--url", "https://u:p@h/mcp"], "has a user or a password"),
    (["add", "x", "--url", "h/mcp"], "is not the URL of an MCP server"),
    (["remove", "x"], "There is no MCP server 'x'"),
    (["update"], "has no server that `add` installed"),
)
async def test_wrong_words_change_nothing(place: Place, words: list[str], said: str) -> None:
    ended = await run(place, None, *words, code=2)
    assert said in ended.err.replace("\n", " ")
    assert not (place.folder / "a2c.json").exists()
    assert not left(place)


async def test_a_name_that_is_taken_is_refused(place: Place) -> None:
    (place.folder / "a2c.json").write_text('{"servers": {"x": {"command": "y"}}}')
    ended = await run(place, None, "add", "x", "--yes", "--", "uvx", "y", code=2)
    assert "a2c.json has an MCP server 'x' already" in ended.err


async def test_a_package_that_is_not_there_is_said_with_a_similar_one(place: Place, index: Registries) -> None:
    ended = await run(place, index, "add", "x", "--yes", "--", "uvx", "mcp-server-tyme", code=1)
    assert "PyPI has no mcp-server-tyme" in ended.err
    assert "Did you mean 'mcp-server-time'?" in ended.err
    assert not left(place)


async def test_an_index_out_of_reach_is_said(place: Place) -> None:
    environ = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    ended = await place.run("add", "x", "--yes", "--", "uvx", "y", **{**environ, "PIP_EXTRA_INDEX_URL": ""})
    assert (ended.code, "PyPI cannot be reached" in ended.err) == (1, True), ended
    assert not left(place)


# The file

COMMENTED = """// mine
{
  "servers": {
    "first": {"command": "x"}, // keep
    /* the clock */
    "clock": {
      "args": ["clock-server==1.0.0", "--zone", "Europe/Berlin"], // its words
      "command": "uvx",
      "tool_meta": {"words": {"auto_apply": true}},
    },
  },
}
"""


@needs_sandbox
async def test_an_entry_with_uvx_becomes_an_installed_one_in_its_place(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.0.0")
    index.pypi("clock-server", "2.0.0")
    file = place.folder / "a2c.json"
    file.write_text(COMMENTED)
    await run(place, index, "add", "clock", "--from-config", "--yes")
    text = file.read_text()
    for kept in ("// mine\n", '"first": {"command": "x"}, // keep\n', "/* the clock */", "], // its words"):
        assert kept in text
    entry = entries(place)["clock"]
    assert [*entry] == ["args", "command", "tool_meta", "env", "cwd", "sandbox"]
    assert "/clock/1.0.0/" in entry["command"]
    assert await called(place, "clock", "words") == "--zone Europe/Berlin"


async def test_adding_and_removing_leaves_the_file_as_it_was(place: Place) -> None:
    file = place.folder / "a2c.json"
    file.write_text(COMMENTED)
    await run(place, None, "add", "tracker", "--url", "https://tracker.example/mcp", "--yes")
    assert entries(place)["tracker"] == {"url": "https://tracker.example/mcp"}
    await run(place, None, "remove", "tracker", "--yes")
    assert file.read_text() == COMMENTED


async def test_toml_is_not_edited(place: Place) -> None:
    (place.folder / "a2c.toml").write_text("[servers.x]\ncommand = 'y'\n")
    ended = await run(place, None, "add", "z", "--url", "https://h/mcp", "--yes", code=2)
    assert "must be JSON" in ended.err


# Update, list, remove


@needs_sandbox
async def test_an_update_shows_what_changes_and_keeps_arguments_and_data(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.0.0")
    await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server", "--zone", "UTC")
    data = place.folder / "data/a2c-smcp/servers/clock/data"
    (data / "kept").write_text("x")
    before = (place.folder / "a2c.json").read_text()
    assert "1.0.0 is installed already" in (await run(place, index, "update")).out
    index.pypi("clock-server", "2.0.0", tools=("words", "home", "new"), says="Another tool")
    ended = await run(place, index, "update", "clock", code=2)
    assert "no terminal" in ended.err
    assert (place.folder / "a2c.json").read_text() == before
    ended = await run(place, index, "update", "clock", "--yes")
    for words in ("1.0.0 → 2.0.0", "new tools: new", "gone: read, write", "another definition: home, words"):
        assert words in ended.err
    assert (place.folder / "a2c.json").read_text() == before.replace("/1.0.0/", "/2.0.0/")
    assert await called(place, "clock", "words") == "--zone UTC"
    assert (data / "kept").exists()
    await run(place, index, "update", "clock", "--to", "1.0.0", "--yes")
    assert (place.folder / "a2c.json").read_text() == before


@needs_sandbox
async def test_an_update_that_does_not_start_leaves_the_version_of_before(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.0.0")
    await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server")
    before = (place.folder / "a2c.json").read_text()
    index.pypi("clock-server", "2.0.0", says='" + nowhere + "')
    ended = await run(place, index, "update", "--yes", code=1)
    assert "clock does not start" in ended.err
    assert (place.folder / "a2c.json").read_text() == before
    assert await called(place, "clock", "words") == ""


@needs_sandbox
async def test_list_says_what_is_installed_and_remove_keeps_data_unless_told(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.0.0")
    (place.folder / "a2c.json").write_text('{"servers": {"web": {"url": "https://h/mcp"}}}')
    await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server")
    rows = json.loads((await run(place, None, "list", "--json")).out)["servers"]
    assert [(row["name"], row["package"], row["version"], row["from"], row["sandbox"]) for row in rows] == [
        ("web", "https://h/mcp", None, "URL", ""),
        ("clock", "clock-server", "1.0.0", "PyPI", "yes"),
    ]
    data = place.folder / "data/a2c-smcp/servers/clock/data"
    (data / "kept").write_text("x")
    ended = await run(place, None, "remove", "clock", "--yes")
    assert f"its data is in {data}" in ended.out
    assert [path.name for path in data.parent.iterdir()] == ["data"]
    await run(place, index, "add", "clock", "--yes", "--", "uvx", "clock-server")
    assert left(place) == ["clock", "clock-2"], "another server does not get the data of a former one of its name"
    await run(place, None, "remove", "clock", "--data", "--yes")
    assert left(place) == ["clock"]


async def test_a_command_that_was_changed_by_hand_is_not_updated(place: Place, index: Registries) -> None:
    index.pypi("clock-server", "1.0.0")
    await run(place, index, "add", "clock", "--yes", "--no-sandbox", "--", "uvx", "clock-server")
    file = place.folder / "a2c.json"
    text = file.read_text()
    file.write_text(text.replace('"args": [', '"args": ["-O",'))
    index.pypi("clock-server", "2.0.0")
    ended = await run(place, index, "update", "--yes", code=1)
    assert "was changed by hand" in ended.err


async def test_no_file_outside_is_taken_for_an_installed_one(place: Place) -> None:
    outside = f"{place.folder}/data/a2c-smcp/servers/../elsewhere/program"
    place.write({"x": {"command": outside}}, "a2c.json")
    rows = json.loads((await run(place, None, "list", "--json")).out)["servers"]
    assert rows[0]["version"] is None
