"""`a2c-smcp connect`, as somebody uses it who has one of the clients and cares for the rest of its configuration."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from a2c_smcp.cli.setup_files import UpInfo, UpState
from a2c_smcp.computer.configuration.files import loads
from a2c_smcp.computer.configuration.programs import CLIENTS as KNOWN
from a2c_smcp.computer.configuration.programs import Machine
from tests.computer.other_programs import FILES, Home
from tests.on_disk import mode_of
from tests.program import PROGRAM, run_program
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("connect")

URL, SERVER = "http://127.0.0.1:7000", "a2c-desk"
CLIENTS = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "claude-code": (".claude.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "opencode": (".config/opencode/opencode.json", "mcp"),
}
"""The file of each client on Linux whose file is JSON, and the key of its servers."""
CODEX = ".codex/config.toml"


class Done(NamedTuple):
    out: str
    err: str


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path)
    place.project.mkdir()
    return place


@pytest.fixture
def run(home: Home) -> Callable[..., Done]:
    def run(*words: str | Path, code: int = 0, **environ: str) -> Done:
        path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
        env = {"HOME": str(home.path), "PATH": path, "COLUMNS": "200", **environ}
        done = run_program("connect", *words, cwd=home.project, env=env)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return Done(done.stdout, done.stderr)

    return run


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def file_of(home: Home, client: str) -> Path:
    return home.path / CLIENTS[client][0]


def put(home: Home, client: str, text: str) -> Path:
    file = file_of(home, client)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


def servers(file: Path, client: str) -> dict[str, Any]:
    found: dict[str, Any] = loads(file.read_text("utf-8-sig"))[CLIENTS[client][1]]
    return found


def words_of(entry: dict[str, Any]) -> list[str]:
    """The command of an entry, the program first."""
    command = entry["command"]
    return [*command] if isinstance(command, list) else [command, *entry["args"]]


# Each client


def texts(group: str) -> dict[str, str]:
    """Contents of a client's file before."""
    plain = f'{{\n  "theme": "dark",\n  "{group}": {{\n    "own": {{"command": "x"}}\n  }},\n  "z": [1, 2]\n}}\n'
    return {
        "plain": plain,
        "no final line end, tabs": plain.replace("  ", "\t").rstrip(),
        "CRLF": plain.replace("\n", "\r\n"),
        "BOM": "\ufeff" + plain,
        "comments": plain.replace('"x"}', '"x",} // mine').replace("{\n  ", "{ /* 三 */\n  ", 1).replace("2]", "2,],"),
        "no group": '{\n    "theme": "dark" // dark\n}\n',
        "an empty group": f'{{ "{group}": {{ }} }}',
        "empty": "",
        "white space": "\n\n",
        "an empty object": "{}",
    }


@pytest.mark.parametrize("style", texts(""))
@pytest.mark.parametrize("client", ["claude-code", "vscode"])
def test_the_bridge_comes_and_goes_and_nothing_else_changes(run: Any, home: Home, client: str, style: str) -> None:
    group = CLIENTS[client][1]
    text = texts(group)[style]
    file = put(home, client, text)
    file.chmod(0o640)
    run(client, "--write")
    before = loads(text.removeprefix("\ufeff")) if text.strip() else {}
    after = loads(file.read_text("utf-8-sig"))
    assert after == {**before, group: {**before.get(group, {}), SERVER: after[group][SERVER]}}
    assert file.read_bytes().startswith(b"\xef\xbb\xbf") == (style == "BOM")
    assert (b"\r\n" in file.read_bytes()) == (style == "CRLF")
    backup = file.with_name(f"{file.name}.a2c-backup")
    assert backup.read_bytes() == text.encode()
    assert (mode_of(file), mode_of(backup)) == (0o640, 0o600)
    run(client, "--undo", "--write")
    assert file.read_bytes() == text.encode()


def test_nothing_is_written_without_write_and_nothing_twice(run: Any, home: Home, client: str) -> None:
    text = texts(CLIENTS[client][1])["plain"]
    file = put(home, client, text)
    shown = run(client)
    assert file.read_bytes() == text.encode()
    assert f'"{SERVER}"' in shown.out
    assert shown.err == "nothing is written yet: --write does it\n"
    done = run(client, "--write")
    assert done.out == shown.out
    assert f"{file} is written; what it was is in {file.name}.a2c-backup\nnext: " in done.err
    written = file.read_bytes()
    again = run(client, "--write")
    assert (again.out, again.err) == ("", f"{SERVER} is in {file} already, as it would be written\n")
    assert run(client, "--undo").err == "nothing is written yet: --write does it\n"
    assert file.read_bytes() == written


def test_a_file_is_made_and_removed_where_there_is_none(run: Any, home: Home, client: str) -> None:
    file = file_of(home, client)
    shown = run(client)
    assert shown.out.startswith(f"--- /dev/null\n+++ {file}\n")
    assert not file.exists()
    run(client, "--write")
    assert servers(file, client).keys() == {SERVER}
    undone = run(client, "--undo", "--write")
    assert undone.err == f"{file} is removed: it was made for this; what it was is in {file.name}.a2c-backup\n"
    assert not file.exists()


def test_the_entry_starts_this_program_by_its_whole_path(run: Any, home: Home, client: str) -> None:
    run(client, "--write", "--url", "https://hub.example:7000", "--office", "lab 2", "--", "--search-above", "40")
    ((name, entry),) = servers(file_of(home, client), client).items()
    command = Path(words_of(entry)[0])
    assert (name, command.samefile(PROGRAM), command.is_absolute()) == ("a2c-lab-2", True, True)
    options = ["--url", "https://hub.example:7000", "--office", "lab 2", "--search-above", "40"]
    assert words_of(entry)[1:] == ["bridge", "--stdio", *options]
    kinds = {"claude-desktop": None, "gemini": None, "opencode": "local"}
    assert entry.get("type") == kinds.get(client, "stdio")


def test_what_has_changed_since_is_kept_when_it_is_undone(run: Any, home: Home, client: str) -> None:
    group = CLIENTS[client][1]
    file = put(home, client, f'{{\n  "{group}": {{\n    "own": {{}}\n  }}\n}}\n')
    run(client, "--write")
    file.write_text(file.read_text().replace('"own": {}', '"own": {"command": "other"}'))
    run(client, "--undo", "--write")
    assert file.read_text() == f'{{\n  "{group}": {{\n    "own": {{"command": "other"}}\n  }}\n}}\n'


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_files_of_each_platform_are_those_that_the_clients_read(platform: str, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "APPDATA": str(tmp_path / "Roaming")}
    machine = Machine.here(environ, platform, tmp_path / "project")
    config = {"linux": ".config", "darwin": "Library/Application Support", "win32": "Roaming"}[platform]
    expected = {name: tmp_path / path.replace(".config", config, 1) for name, (path, _) in CLIENTS.items()}
    expected |= {"opencode": tmp_path / CLIENTS["opencode"][0], "codex": tmp_path / CODEX}
    assert {name: program.user_file(machine) for name, program in KNOWN.items()} == expected


# Codex, whose file is TOML

TOML = """# mine
model = "large"   # the larger one

[mcp_servers.own]  # with a key
command = "x"
args = ["--key", "sk-of-another-server"]
env = { TOKEN = "sk-of-another-server" }

[mcp_servers."of two words".env]
TEXT = \"\"\"
[mcp_servers.a2c-desk]
sk-of-another-server = 1
\"\"\"

[tui]
theme = "dark"
"""


@pytest.mark.parametrize("text", [TOML, TOML.rstrip(), TOML.replace("\n", "\r\n"), "", "\n\n", "[mcp_servers]\n"])
def test_a_table_comes_and_goes_in_toml_and_nothing_else_changes(run: Any, home: Home, text: str) -> None:
    file = home.path / CODEX
    file.parent.mkdir()
    file.write_bytes(text.encode())
    said = [*run("codex"), *run("codex", "--write")]
    before, after = tomllib.loads(text), tomllib.loads(file.read_bytes().decode())
    entry = after["mcp_servers"].pop(SERVER)
    assert after == {**before, "mcp_servers": before.get("mcp_servers", {})}
    assert words_of(entry)[1:] == ["bridge", "--stdio", "--url", URL, "--office", "desk"]
    assert file.read_bytes().startswith(text.encode())
    own = file.read_bytes() + b"[later]\nkey = 'sk-of-another-server'\n"
    file.write_bytes(own)
    said += [*run("codex", "--undo"), *run("codex", "--undo", "--write")]
    assert tomllib.loads(file.read_bytes().decode()) == {**before, "later": {"key": "sk-of-another-server"}}
    assert "sk-of-another-server" not in "".join(said)


def test_toml_is_undone_as_it_was_and_refused_where_it_cannot_be_changed(run: Any, home: Home) -> None:
    file = home.path / CODEX
    run("codex", "--write")
    run("codex", "--undo", "--write")
    assert not file.exists()
    file.write_text(TOML)
    run("codex", "--write")
    run("codex", "--undo", "--write")
    assert file.read_text() == TOML
    for text in ("mcp_servers = { own = { command = 'x' } }\n", "[mcp_servers\n"):
        file.write_text(text)
        assert f"{file}" in run("codex", "--write", code=1).err
        assert file.read_text() == text


def test_the_entry_is_printed_in_the_language_of_the_client(run: Any) -> None:
    assert tomllib.loads(run("codex", "--print").out)["mcp_servers"].keys() == {SERVER}
    assert json.loads(run("opencode", "--print").out)["mcp"].keys() == {SERVER}


# The URL of the office at its Server

OVER_HTTP: dict[str, dict[str, Any]] = {
    "claude-code": {"type": "http", "url": "…", "headers": {"Authorization": "Bearer ${A2C_API_KEY}"}},
    "cursor": {"url": "…", "headers": {"Authorization": "Bearer ${env:A2C_API_KEY}"}},
    "vscode": {"type": "http", "url": "…", "headers": {"Authorization": "Bearer ${env:A2C_API_KEY}"}},
    "codex": {"url": "…", "bearer_token_env_var": "A2C_API_KEY"},
    "gemini": {"httpUrl": "…", "headers": {"Authorization": "Bearer ${A2C_API_KEY}"}},
    "opencode": {
        "type": "remote",
        "url": "…",
        "oauth": False,
        "headers": {"Authorization": "Bearer {env:A2C_API_KEY}"},
    },
}


@pytest.mark.parametrize("client", OVER_HTTP)
def test_the_url_is_written_without_the_key_and_without_one_the_client_signs_in(
    run: Any, home: Home, client: str
) -> None:
    words = (client, "--http", "--url", "https://hub.example/", "--office", "lab 2", "--write")
    said = run(*words, A2C_API_KEY="k" * 20)
    file = home.path / ({name: path for name, (path, _) in CLIENTS.items()} | {"codex": CODEX})[client]
    text = file.read_text()
    found = tomllib.loads(text) if client == "codex" else json.loads(text)
    url = "https://hub.example/mcp/lab%202"
    wanted = {key: url if value == "…" else value for key, value in OVER_HTTP[client].items()}
    assert found[KNOWN[client].group]["a2c-lab-2"] == wanted
    assert "k" * 20 not in text
    assert "the environment variable A2C_API_KEY" in said.err
    assert not (home.path / ".local/state/a2c-smcp/connect").exists(), "no file with a key that nothing reads"
    run(client, "--undo", "--office", "lab 2", "--write")
    assert not file.exists()
    run(*words)
    assert url in file.read_text()
    assert "A2C_API_KEY" not in file.read_text()


# Keys and secrets


def test_a_key_goes_to_a_private_file_and_not_into_the_configuration(run: Any, home: Home, client: str) -> None:
    key = f"a2c_{uuid4().hex}"
    shown = run(client, A2C_API_KEY=key)
    kept = home.path / ".local/state/a2c-smcp/connect" / f"{SERVER}.key"
    assert not kept.exists()
    done = run(client, "--write", A2C_API_KEY=key)
    assert key not in "".join([*shown, *done, file_of(home, client).read_text()])
    assert words_of(servers(file_of(home, client), client)[SERVER])[-2:] == ["--key-file", str(kept)]
    assert (kept.read_text().strip(), mode_of(kept)) == (key, 0o600)
    run(client, "--write", A2C_API_KEY=f"{key}2")
    assert kept.read_text().strip() == f"{key}2", "another key for the same entry"


def test_what_is_typed_goes_before_the_variable_of_the_other_one(run: Any, home: Home) -> None:
    mine, other = home.path / "mine.key", home.path / "other.key"
    for file in (mine, other):
        file.write_text(f"key-of-{file.name}-0123456789")
    run("cursor", "--key-file", str(mine), "--write", A2C_API_KEY="k" * 20)
    assert servers(file_of(home, "cursor"), "cursor")[SERVER]["args"][-1] == str(mine)
    run("cursor", "--undo", "--write")
    run("cursor", "--api-key", "k" * 20, "--write", A2C_KEY_FILE=str(other))
    kept = Path(servers(file_of(home, "cursor"), "cursor")[SERVER]["args"][-1])
    assert (kept.name, kept.read_text().strip()) == (f"{SERVER}.key", "k" * 20)
    new = home.path / "new.key"
    run("cursor", "--key-file", str(new), "--name", "new", "--write", A2C_API_KEY="n" * 20)
    assert new.read_text().strip() == "n" * 20


def test_a_key_file_is_used_as_it_is_or_made(run: Any, home: Home) -> None:
    kept = home.path / "lab.key"
    refused = run("cursor", "--key-file", "~/lab.key", code=2)
    assert refused.err == f"There is no file {kept}. Give the key with --api-key, and the file is made.\n"
    run("cursor", "--key-file", "~/lab.key", "--api-key", "k" * 20, "--write")
    assert (kept.read_text(), mode_of(kept)) == (f"{'k' * 20}\n", 0o600)
    assert servers(file_of(home, "cursor"), "cursor")[SERVER]["args"][-1] == str(kept)
    assert "holds another key" in run("cursor", "--key-file", kept, "--api-key", "j" * 20, code=2).err
    kept.chmod(0o644)
    said = run("cursor", "--key-file", kept)
    assert said.err.startswith(f"others on this machine can read {kept}; run: chmod 600 ")
    kept.write_text("two words\n")
    assert "does not hold a key" in run("cursor", "--key-file", kept, code=2).err


def test_the_key_of_a_running_up_is_found(run: Any, home: Home) -> None:
    state = UpState(home.project / "a2c.json", home.path / ".local/state/a2c-smcp")
    state.key(lambda: "a2c_of_the_running_up")
    with state.claimed() as write_info:
        write_info(UpInfo(url=URL, office="desk", name="laptop", pid=os.getpid()))
        run("cursor", "--url", "http://localhost:7000", "--write")
    args = servers(file_of(home, "cursor"), "cursor")[SERVER]["args"]
    assert args[2:] == ["--url", URL, "--office", "desk", "--key-file", str(state.key_file)]


@pytest.mark.parametrize("kind", [name for name in FILES if name in CLIENTS])
def test_no_secret_of_another_server_is_shown(run: Any, home: Home, kind: str) -> None:
    sample = FILES[kind]()
    file = home.put(sample)
    lines = json.dumps(loads(sample.text)), sample.text
    for text in lines:
        file.write_text(text, "utf-8")
        said = [*run(kind, "--config", file), *run(kind, "--config", file, "--write"), *run(kind, "--config", file)]
        said += [*run(kind, "--config", file, "--undo", "--write"), *run(kind, "--config", file, "--json")]
        assert [secret for secret in sample.secrets if secret in "".join(said)] == []
        assert file.read_text("utf-8") == text


def test_a_key_that_goes_over_a_network_in_the_clear_is_warned_of(run: Any, home: Home) -> None:
    said = run("cursor", "--url", "http://hub.example:7000", "--api-key", "k" * 20)
    assert "goes to hub.example unencrypted" in said.err


# Clear errors


def test_files_that_cannot_be_changed_are_refused_with_a_remedy(run: Any, home: Home, client: str) -> None:
    group = CLIENTS[client][1]
    faults = {
        '{"a": ': "not JSON",
        "[1]": "is not of the shape",
        f'{{"{group}": []}}': "is not of the shape",
        f'{{"{group}": {{"a": 1, "a": 2}}}}': "is there twice",
    }
    for text, fault in faults.items():
        file = put(home, client, text)
        refused = run(client, "--write", code=1).err
        assert [each for each in (str(file), fault, "--config") if each not in refused] == []
        assert file.read_text() == text
    file.write_bytes(b"\xff\xfe{\0}\0")
    assert "not UTF-8 text" in run(client, code=1).err


def test_a_link_is_not_replaced_by_a_file(run: Any, home: Home, client: str) -> None:
    real = home.path / "dotfiles.json"
    real.write_text("{}")
    file = put(home, client, "")
    file.unlink()
    file.symlink_to(real)
    refused = run(client, "--write", code=1)
    assert f"{file} is a link to {real}" in refused.err
    assert file.is_symlink()
    run(client, "--write", "--config", real)
    assert servers(real, client).keys() == {SERVER}


def test_a_file_that_cannot_be_written_is_named(run: Any, home: Home, client: str) -> None:
    folder = home.path / "file"
    folder.write_text("not a folder")
    refused = run(client, "--write", "--config", folder / "mcp.json", code=1)
    assert f"{folder / 'mcp.json'}: cannot be" in refused.err


def test_another_server_of_that_name_stays(run: Any, home: Home, client: str) -> None:
    text = json.dumps({CLIENTS[client][1]: {SERVER: {"command": "theirs"}}})
    file = put(home, client, text)
    refused = run(client, "--write", code=1)
    assert refused.err == f"{file} has another server named '{SERVER}'. Choose another name with --name.\n"
    undo = run(client, "--undo", "--write", code=1)
    assert undo.err == f"'{SERVER}' in {file} is not a bridge. --name names the one that is.\n"
    assert file.read_text() == text
    run(client, "--write", "--name", "machines")
    assert servers(file, client).keys() == {SERVER, "machines"}
    assert "Its bridges are machines" in run(client, "--undo", "--name", "other", code=1).err
    assert "a bridge named 'machines' already" in run(client, "--name", "machines", "--office", "lab", code=1).err


@cases(
    "words, code, said",
    ([], 2, "Which client? Name one of claude-desktop, "),
    (["zed"], 2, "'zed' is not a client that is known"),
    (["cursor", "--name", "my machines"], 2, "is not a name that clients accept"),
    (["cursor", "--url", "hub"], 2, "--url"),
    (["cursor", "--undo"], 1, "nothing to undo"),
    (["claude-desktop", "--http"], 2, "takes no URL"),
    (["--http", "--print"], 2, "Which client?"),
    (["cursor", "--http", "--", "--search-above", "4"], 2, "no bridge"),
    (["cursor", "--write", "--", "--serch-above", "40"], 2, "--serch-above"),
    (["cursor", "--", "--search-above", "many"], 2, "must be a whole number"),
)
def test_wrong_use_says_what_to_do(run: Any, home: Home, words: list[str], code: int, said: str) -> None:
    assert said in run(*words, code=code).err
    assert not file_of(home, "cursor").exists()


@pytest.mark.parametrize("words", [["--url", "https://ann:pw-of-ann@hub.example"], ["--", "--api-key=pw-of-ann"]])
def test_no_key_gets_into_the_file_by_another_way(run: Any, home: Home, words: list[str]) -> None:
    refused = run("cursor", "--write", *words, code=2)
    assert "into the client's file" in refused.err
    assert "pw-of-ann" not in refused.err
    assert not file_of(home, "cursor").exists()


def test_two_clients_with_bridges_that_share_no_seat_are_warned_of(run: Any, home: Home) -> None:
    (home.path / "other.key").write_text("key-of-another-0123456789")
    run("cursor", "--write", "--key-file", home.path / "other.key")
    put(home, "vscode", "no JSON")
    said = run("claude-desktop")
    assert "Cursor has a bridge to this office too, with another key or other options, and only one of the" in said.err
    assert "Cursor" not in run("claude-desktop", "--office", "lab").err
    assert "Cursor" not in run("claude-desktop", "--key-file", home.path / "other.key", "--", "--timeout", "9").err
    assert "Cursor" in run("claude-desktop", "--key-file", home.path / "other.key", "--", "--name", "mine").err
    assert "too" not in run("cursor", "--key-file", home.path / "other.key").err


# For other clients and for programs


def test_the_entry_is_printed_for_any_client(run: Any, home: Home) -> None:
    printed = json.loads(run("--print", "--", "--log-level", "debug").out)
    args = printed["mcpServers"][SERVER]["args"]
    assert args == ["bridge", "--stdio", "--url", URL, "--office", "desk", "--log-level", "debug"]
    assert [*json.loads(run("vscode", "--print").out)] == ["servers"]
    assert [*home.path.rglob("*.json")] == []


def test_a_program_reads_json(run: Any, home: Home, client: str) -> None:
    file = put(home, client, "{}")
    said = json.loads(run(client, "--json", "--write").out)
    assert said.pop("diff").startswith(f"--- {file}\n")
    place = {"client": client, "file": str(file), "backup": f"{file}.a2c-backup", "written": True}
    assert said == {**place, "server": SERVER, "entry": servers(file, client)[SERVER]}
