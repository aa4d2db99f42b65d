"""`a2c-smcp key`: what it prints lets its holder in."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from a2c_smcp.cli.commands.key import key
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider, hash_key
from a2c_smcp.server.auth.authentication import Principal
from tests.stage.keys import enter

pytestmark = pytest.mark.covers("auth-keys")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(key, arguments)


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


async def holder(new: str, entries: object, folder: Path) -> object:
    path = folder / "keys.json"
    path.write_text(json.dumps(entries), "utf-8")
    return await enter(DefaultAuthenticationProvider(keys_file=path), {"token": new})


async def test_the_first_line_is_the_key_and_the_rest_a_keys_file(tmp_path: Path) -> None:
    result = run("--principal", "alice")
    new, _, entries = result.stdout.partition("\n")
    assert result.exit_code == 0
    assert await holder(new, json.loads(entries), tmp_path) == Principal("alice")
    assert new not in entries + result.stderr
    assert "keys file" in result.stderr


async def test_every_option_finds_its_way_into_the_entry(tmp_path: Path) -> None:
    scope = ["--office", "desk", "--office", "团队-*", "--role", "agent", "--name", "planner"]
    result = run("--principal", "alice", *scope, "--expires", "2999-01-01T00:00:00Z", "--json")
    made = json.loads(result.stdout)
    assert list(made["entries"]) == [hash_key(made["key"])]
    assert await holder(made["key"], made["entries"], tmp_path) == Principal(
        "alice", frozenset({"desk", "团队-*"}), frozenset({"agent"}), frozenset({"planner"}), 32472144000.0
    )
    assert result.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--principal", ""],
        ["--principal", "alice", "--role", "admin"],
        ["--principal", "alice", "--office", ""],
        *[["--principal", "alice", "--expires", odd] for odd in ("", "2027-01-01", "tomorrow", "2020-01-01T00:00:00Z")],
    ],
)
def test_a_mistake_is_a_usage_error_and_makes_no_key(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")


async def test_an_entry_can_be_added_to_a_keys_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = {name: run("--principal", name, "--add-to", str(path)).stdout.strip() for name in ("alice", "bob")}
    provider = DefaultAuthenticationProvider(keys_file=path)
    for name, new in keys.items():
        assert await enter(provider, {"token": new}) == Principal(name)
        assert new not in path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    assert names_in(tmp_path) == ["keys.json"]


@pytest.mark.parametrize("content", ["not JSON", "[]"])
def test_a_keys_file_that_cannot_be_read_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content, "utf-8")
    result = run("--principal", "alice", "--add-to", str(path))
    assert result.exit_code == 2
    assert path.read_text("utf-8") == content
