"""The guide on sandboxes: its tables, its examples and its sentences are those of the program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from a2c_smcp.cli.doctor.checks import sandboxes
from a2c_smcp.cli.doctor.findings import Situation
from a2c_smcp.mcp_host.config.sandbox import STRICT, SandboxSettings
from a2c_smcp.mcp_host.config.servers import StdioConfig, parse_server
from a2c_smcp.mcp_host.processes import readable
from a2c_smcp.mcp_host.processes.landlock import BY_ABI
from a2c_smcp.mcp_host.processes.plan import Possible, RefusedPaths, planned

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "sandbox.md"
TEXT = PAGE.read_text("utf-8")

pytestmark = pytest.mark.covers("sandbox")


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_fields_has_their_defaults() -> None:
    known = SandboxSettings().model_dump(mode="json")
    shown = {field.strip("`"): default.strip("`") for field, _, default in rows("| field |")}
    assert list(shown) == list(known)
    written = {"2 GiB": "2 GiB", "64": 64, "true": True}
    assert {name: written[default] for name, default in shown.items() if default in written} == {
        name: value for name, value in known.items() if value != []
    }


def test_the_table_of_kernels_is_that_of_the_program() -> None:
    assert rows("| Landlock |") == [[str(version), linux, adds] for version, (linux, adds) in BY_ABI.items()]


def test_the_examples_are_sandboxes_of_which_one_is_strict() -> None:
    (block,) = re.findall(r"^```json\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    servers = [parse_server(server, name) for name, server in json.loads(block)["servers"].items()]
    boxes = [server.sandbox for server in servers if isinstance(server, StdioConfig)]
    assert [box.model_fields_set if box else None for box in boxes] == [
        {"read", "memory", "processes"},
        {"connect"},
        set(),
    ]
    assert STRICT in block


def test_the_line_of_the_log_is_what_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "ann"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("")
    env, can = {"HOME": str(home)}, Possible(7, True)
    plan = planned(SandboxSettings(), command="/bin/sh", args=[], env=env, configured={}, cwd="/", can=can)
    RefusedPaths("files", plan).read(f"EACCES: permission denied, open '{home}/.ssh/config'\n".encode())
    (shown,) = re.findall(r"^```text\n(.*?)\n```", TEXT, re.DOTALL | re.MULTILINE)
    assert caplog.messages == [shown.replace("/home/ann", str(home))]


def test_the_folders_that_are_named_are_readable() -> None:
    section = TEXT.partition("## What every")[2].partition("\n## ")[0]
    named = re.findall(r"`(~?/[\w./-]+)`", section)
    assert len(named) > 8
    allowed = {*readable.SYSTEM, "/etc", "/proc", "/sys", *(f"~/{path}" for path in readable.IN_HOME)}
    assert [path for path in named if path not in allowed] == []


def test_doctor_says_what_is_possible() -> None:
    (found,) = sandboxes(Situation())
    assert "sandbox" in found.what.lower()
