"""`a2c-smcp add` with packages of npm: installed by the real npm, from a registry on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from a2c_smcp.mcp_host.processes.plan import possible
from tests.cli.test_add import called, entries, left, run
from tests.stage.cases import cases
from tests.stage.place import Place
from tests.stage.registries import Registries, registries

SERVER = "@ann/notes-server"
INSTALL = {"scripts": {"install": "node -e \"require('fs').writeFileSync('ran', '')\""}}

pytestmark = [
    pytest.mark.covers("add-npm"),
    pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports"),
]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Registries]:
    with registries() as served:
        served.environ["npm_config_cache"] = str(tmp_path / "npm")
        yield served


async def test_npx_becomes_node_with_the_installed_program(place: Place, index: Registries) -> None:
    index.npm(SERVER, "1.2.0")
    ended = await run(place, index, "add", "notes", "--yes", "--", "npx", "-y", f"{SERVER}@^1.0.0", "--in", "{data}")
    for words in (f"{SERVER} 1.2.0, from npm", "publisher: ann", "checksum:  sha512-", "tools: 4"):
        assert words in ended.err
    home = place.folder / "data/a2c-smcp/servers/notes"
    entry = entries(place)["notes"]
    assert Path(entry["command"]).name == "node"
    assert entry["args"] == [str(home / f"1.2.0/node_modules/{SERVER}/main.js"), "--in", str(home / "data")]
    assert await called(place, "notes", "words") == f"--in {home / 'data'}"
    assert "EACCES" in await called(place, "notes", "read", path=str(place.folder / "a2c.json"))
    assert "EACCES" in await called(place, "notes", "write", path=entry["args"][0])
    assert await called(place, "notes", "write", path=str(home / "data/new")) == "written"
    lock = json.loads((home / "1.2.0/package-lock.json").read_text())["packages"]
    assert lock[f"node_modules/{SERVER}"]["integrity"].startswith("sha512-")


async def test_install_scripts_run_only_if_they_are_allowed(place: Place, index: Registries) -> None:
    index.npm(SERVER, "1.2.0", **INSTALL)
    for name, option in (("closed", []), ("open", ["--install-scripts"])):
        ended = await run(place, index, "add", name, "--yes", *option, "--", "npx", "-y", SERVER)
        assert f"{SERVER}: {'may run code now' if option else 'want to run code now, which is left out'}" in ended.err
        ran = place.folder / f"data/a2c-smcp/servers/{name}/1.2.0/node_modules/{SERVER}/ran"
        assert ran.exists() == bool(option)


@cases(
    "package, more, said",
    (SERVER, {"checksum": f"sha512-{'A' * 86}=="}, "has another checksum than npm states"),
    (SERVER, {"dependencies": {"left": "git+https://git.example/left.git"}}, "cannot be installed"),
    (SERVER, {"dependencies": {"other": "{url}/files/@ann-other-1.0.0.tgz"}}, "needs other from outside of npm"),
    (SERVER, {"dependencies": {"nowhere-to-be-found": "1"}}, "cannot be installed"),
    (SERVER, {"bin": {"one": "main.js", "two": "package.json"}}, "It has one, two: npx -p PACKAGE NAME"),
    (SERVER, {"bin": {}}, "It is no server"),
    (SERVER, {"bin": "../../outside.js"}, "names a program that it does not have"),
    ("@modelcontextprotocol/server-everythin", {}, "Did you mean '@modelcontextprotocol/server-everything'?"),
    (f"{SERVER}@9", {}, f"npm has no {SERVER} 9"),
)
async def test_a_package_that_is_not_sound_installs_nothing(
    place: Place, index: Registries, package: str, more: dict[str, object], said: str
) -> None:
    index.npm("@ann/other", "1.0.0")
    index.npm(SERVER, "1.2.0", **json.loads(json.dumps(more).replace("{url}", index.url)))
    ended = await run(place, index, "add", "notes", "--yes", "--", "npx", "-y", package, code=1)
    assert said in ended.err
    assert not left(place)
    assert not (place.folder / "a2c.json").exists()


async def test_the_program_that_is_named_is_taken(place: Place, index: Registries) -> None:
    index.npm(SERVER, "1.2.0", bin={"one": "package.json", "two": "main.js"})
    await run(place, index, "add", "notes", "--yes", "--", "npx", "-y", "-p", SERVER, "two", "word")
    assert await called(place, "notes", "words") == "word"


async def test_an_update_says_that_another_account_has_published_it(place: Place, index: Registries) -> None:
    index.npm(SERVER, "1.0.0")
    await run(place, index, "add", "notes", "--yes", "--", "npx", "-y", SERVER)
    index.npm(SERVER, "1.1.0", by="mallory")
    ended = await run(place, index, "update", "notes", "--yes")
    assert "publisher: ann → mallory" in ended.err
    assert "/notes/1.1.0/" in entries(place)["notes"]["args"][0]


async def test_without_npm_it_says_what_to_install(place: Place) -> None:
    ended = await place.run("add", "notes", "--yes", "--", "npx", "-y", SERVER, PATH=str(place.folder))
    assert (ended.code, "is not on the PATH. Install Node.js with npm" in ended.err) == (1, True), ended


async def test_a_registry_out_of_reach_is_said(place: Place) -> None:
    environ = {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_cache": str(place.folder / "npm")}
    ended = await place.run("add", "notes", "--yes", "--", "npx", "-y", SERVER, **environ)
    assert (ended.code, "npm cannot be reached" in ended.err) == (1, True), ended
    assert not left(place)
