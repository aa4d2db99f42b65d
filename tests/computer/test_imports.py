"""Where other programs keep their files, and what becomes of what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.configuration.convert import Conversion, convert
from a2c_smcp.computer.configuration.definitions import render
from a2c_smcp.computer.configuration.programs import PLAIN, PROGRAMS, Document, Machine, Program, program_of

pytestmark = pytest.mark.covers("program-import")

FOLDER = Path("/srv/shop")
LINUX = {"HOME": "/home/ann"}
MAC = {"HOME": "/Users/ann"}
BARE = {"USERPROFILE": "C:/Users/ann"}
WINDOWS = {**BARE, "APPDATA": "D:/Roaming"}
CLAUDE, LIBRARY = "Claude/claude_desktop_config.json", "/Users/ann/Library/Application Support"

PLACES = {
    "linux": ("linux", LINUX, "claude-desktop", [f"/home/ann/.config/{CLAUDE}"]),
    "linux, elsewhere": ("linux", {**LINUX, "XDG_CONFIG_HOME": "/etc/ann"}, "claude-desktop", [f"/etc/ann/{CLAUDE}"]),
    "macOS": ("darwin", MAC, "claude-desktop", [f"{LIBRARY}/{CLAUDE}"]),
    "Windows": ("win32", WINDOWS, "claude-desktop", [f"D:/Roaming/{CLAUDE}"]),
    "Windows without APPDATA": ("win32", BARE, "claude-desktop", [f"C:/Users/ann/AppData/Roaming/{CLAUDE}"]),
    "Claude Code": ("linux", LINUX, "claude-code", ["/srv/shop/.mcp.json", "/home/ann/.claude.json"]),
    "Cursor": ("win32", WINDOWS, "cursor", ["/srv/shop/.cursor/mcp.json", "C:/Users/ann/.cursor/mcp.json"]),
    "VS Code": ("darwin", MAC, "vscode", ["/srv/shop/.vscode/mcp.json", f"{LIBRARY}/Code/User/mcp.json"]),
}


@pytest.mark.parametrize(("platform", "environ", "program", "files"), PLACES.values(), ids=PLACES)
def test_each_program_has_its_files_where_the_platform_has_them(
    platform: str, environ: dict[str, str], program: str, files: list[str]
) -> None:
    machine = Machine.here(environ, platform, FOLDER)
    assert PROGRAMS[program].files(machine) == [Path(file) for file in files]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_that_is_named_is_recognised(program: str) -> None:
    machine = Machine.here(LINUX, "linux", FOLDER)
    assert {program_of(path).name for path in PROGRAMS[program].files(machine)} == {program}
    assert program_of(Path("/srv/shop/mcp.json")) is PLAIN


def converted(
    server: dict[str, Any], program: Program = PLAIN, inputs: tuple[Any, ...] = (), keep: tuple[str, ...] = ()
) -> Conversion:
    machine = Machine.here({**LINUX, "TOKEN": "of this shell"}, "linux", FOLDER)
    return convert([Document(Path("file.json"), program, FOLDER, {"s": server}, inputs)], machine, keep)


DESKTOP, CODE, CURSOR = PROGRAMS["claude-desktop"], PROGRAMS["claude-code"], PROGRAMS["cursor"]
TEXTS = {
    "what Claude Desktop does not know": ("${HOME} ${env:X} ${X}", DESKTOP, "${HOME} ${env:X} ${X}"),
    "a variable": ("a ${X} b", CODE, "a ${input:X} b"),
    "one with a default": ("${X:-y}", CODE, "${input:X}"),
    "a well-known one": ("${HOME}/x", CODE, "/home/ann/x"),
    "one of Cursor": ("${env:X}", CURSOR, "${input:X}"),
    "not one of Cursor": ("${X}", CURSOR, "${X}"),
    "a place in an editor": ("${userHome}${/}${workspaceFolder}", CURSOR, "/home/ann//srv/shop"),
    "a place in Claude Code": ("${workspaceFolder}", CODE, "${input:workspaceFolder}"),
    "an input": ("${input:x}", PLAIN, "${input:x}"),
    "of a shell": ("$X $(id) %X%", PLAIN, "$X $(id) %X%"),
}


@pytest.mark.parametrize(("text", "program", "expected"), TEXTS.values(), ids=TEXTS)
def test_variables_are_read_as_their_program_reads_them(text: str, program: Program, expected: str) -> None:
    found = converted({"command": "x", "args": [text]}, program)
    assert found.servers["s"]["server_parameters"]["args"] == [expected]


def test_a_variable_is_one_input_with_its_default_and_two_defaults_are_two_inputs() -> None:
    found = converted({"command": "x", "args": ["${X}", "${X:-1}", "${X:-2}", "${TOKEN}"]}, CODE)
    args = ["${input:X}", "${input:X}", "${input:X-2}", "${input:TOKEN}"]
    assert found.servers["s"]["server_parameters"]["args"] == args
    assert {id_: each.get("default") for id_, each in found.inputs.items()} == {"X": "1", "X-2": "2", "TOKEN": None}
    assert found.inputs["TOKEN"]["password"] is True
    assert found.secrets == ()


SECRETS: dict[str, tuple[dict[str, Any], str]] = {
    "a variable": ({"command": "x", "env": {"OPENAI_API_KEY": "SECRET"}}, "s-openai-api-key"),
    "a header": ({"url": "https://x.example", "headers": {"X-Auth": "SECRET"}}, "s-x-auth"),
    "a bearer": ({"url": "https://x.example", "headers": {"Authorization": "Bearer SECRET"}}, "s-authorization"),
    "a flag": ({"command": "x", "args": ["--token", "SECRET"]}, "s-token"),
    "a flag with its value": ({"command": "x", "args": ["--token=SECRET"]}, "s-token"),
    "a header among arguments": ({"command": "x", "args": ["-H", "Authorization: Bearer SECRET"]}, "s-authorization"),
    "a variable among arguments": ({"command": "x", "args": ["-e", "API_KEY=SECRET"]}, "s-api-key"),
    "a password in a URL": ({"command": "x", "args": ["redis://me:SECRET@h/0"]}, "s-password"),
    "a query": ({"url": "https://x.example/mcp?a=b&key=SECRET"}, "s-key"),
    "a path": ({"url": "https://x.example/s/SECRETSECRET01234567890123456789/mcp"}, "s-key"),
    "a known shape": ({"command": "x", "env": {"PLAIN": "ghp_SECRET0123456789"}}, "s-key"),
    "JSON in a variable": ({"command": "x", "env": {"CONFIG": '{"password": "SECRET"}'}}, "s-password"),
}
HARMLESS: dict[str, dict[str, Any]] = {
    "ordinary variables": {"command": "x", "env": {"LOG_LEVEL": "debug", "USE_AUTH": "true", "PWD": "/tmp/secret"}},
    "ordinary arguments": {"command": "x", "args": ["--max-tokens", "100", "-e", "NODE_ENV=production", "-e", "TOKEN"]},
    "references": {"command": "x", "args": ["--token", "$TOKEN", "--header", "Authorization: Bearer ${AUTH_TOKEN}"]},
    "JSON as it is written": {"command": "x", "env": {"CONFIG": '{ "a":1 }'}},
    "an ordinary URL": {"url": "https://x.example/mcp?workspace=blue&page=2"},
}


@pytest.mark.parametrize(("server", "id_"), SECRETS.values(), ids=SECRETS)
def test_a_secret_is_found_named_and_kept_if_wanted(server: dict[str, Any], id_: str) -> None:
    found = converted(server, DESKTOP)
    assert "SECRET" not in repr(found)
    assert [secret.id for secret in found.secrets] == [id_]
    assert f"${{input:{id_}}}" in repr(found.servers)
    assert found.inputs[id_]["password"] is True
    assert found.values(["s"]).keys() == {id_}
    kept = converted(server, DESKTOP, keep=(id_,))
    assert kept.servers["s"]["server_parameters"] == {key: server[key] for key in server}
    assert (kept.inputs, kept.values(["s"])) == ({}, {})


@pytest.mark.parametrize("server", HARMLESS.values(), ids=HARMLESS)
def test_ordinary_values_stay_as_they_are_written(server: dict[str, Any]) -> None:
    found = converted(server, DESKTOP)
    assert found.secrets == ()
    assert found.servers["s"]["server_parameters"] == server


def test_an_input_that_is_defined_does_not_stand_for_a_secret_of_that_name() -> None:
    definition = {"id": "s-token", "type": "promptString", "description": "Mine"}
    server = {"command": "x", "args": ["${input:s-token}"], "env": {"TOKEN": "one of mine"}}
    found = converted(server, inputs=(definition,))
    assert found.servers["s"]["server_parameters"]["env"] == {"TOKEN": "${input:s-token-2}"}
    assert found.inputs["s-token"] == definition


def test_an_input_without_a_definition_is_asked_for() -> None:
    found = converted({"command": "x", "args": ["${input:lost}"]})
    assert found.inputs["lost"]["type"] == "promptString"
    assert "input 'lost' is not defined in the file: it will be asked for" in found.notes


def test_a_secret_inside_json_may_be_of_several_lines_and_hold_quotes() -> None:
    account = {"user": "ann", "pin": 1234, "private_key": '-----BEGIN "KEY"-----\n\\x\n', "more": '{"token": "a\\"b"}'}
    server = {"command": "x", "env": {"ACCOUNT": json.dumps(account)}}
    found = converted(server)
    values = found.values(["s"])
    assert values.keys() == {"s-private-key", "s-token"}
    started = render(found.servers["s"]["server_parameters"], values)
    assert json.loads(started["env"]["ACCOUNT"]) == account
    kept = converted(server, keep=tuple(values))
    assert json.loads(kept.servers["s"]["server_parameters"]["env"]["ACCOUNT"]) == account


def test_imported_tools_ask_for_approval_and_a_note_says_so() -> None:
    server = {
        "command": "x",
        "default_tool_meta": {"auto_apply": True, "tags": ["a"]},
        "tool_meta": {"rm": {"auto_apply": True}, "ls": {"auto_apply": False}},
        "secrets": {"A": True, "TOKEN": False},
    }
    found = converted(server)
    assert found.servers["s"]["default_tool_meta"] == {"tags": ["a"]}
    assert found.servers["s"]["tool_meta"] == {"rm": {}, "ls": {"auto_apply": False}}
    assert found.servers["s"]["secrets"] == {"A": True}
    assert [note.partition(":")[0] for note in found.notes] == [
        "servers.s.default_tool_meta.auto_apply is left out",
        "servers.s.tool_meta.rm.auto_apply is left out",
    ]


def test_an_import_keeps_a_sandbox() -> None:
    found = converted({"command": "x", "sandbox": {"read": ["${HOME}/notes"], "connect": [443]}})
    assert found.servers["s"]["sandbox"] == {"read": ["/home/ann/notes"], "connect": [443]}
    found = converted({"type": "stdio", "server_parameters": {"command": "x", "sandbox": "strict"}})
    assert found.servers["s"]["sandbox"] == "strict"
