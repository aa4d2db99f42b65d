"""Screens of the owner and the user: nothing is hidden, and files that others may change are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from a2c_smcp.cli.options import exposed
from a2c_smcp.cli.prompt import views
from a2c_smcp.computer.consent.approval import ApprovalRequest, Caller, PendingApproval
from tests.computer.pseudo_terminal import on_a_terminal
from tests.stage.cases import cases
from tests.stage.place import PROGRAM, Place, good

KEY = "a-key-of-many-characters"
C1_DEL_BIDI = "\x9b2J\x7f\u202e\u200b"


# Approvals


def asked(arguments: dict[str, Any], *, in_full: bool = False) -> list[str]:
    """The lines below the first one of a request."""
    request = ApprovalRequest(Caller("desk", "planner"), "run", "files", "run", arguments)
    return views.request(PendingApproval(1, request, None), in_full=in_full).split("\n")[1:]  # type: ignore[arg-type]


@pytest.mark.covers("prompt-approvals")
@cases(
    "padding",
    {"note": " " * 5000},
    {"note": "\n" * 5000},
    {"note": "x" * 5000},
    {f"key-{number}": "x" * 50 for number in range(150)},
    {"note": {"deep": [["x" * 400]] * 3}},
    {"note": f"{C1_DEL_BIDI}\x1b[2J\r"},
    ids=["blanks", "lines", "letters", "keys", "depth", "controls"],
)
def test_every_argument_is_shown_whatever_stands_before_it(padding: dict[str, Any]) -> None:
    lines = asked({**padding, "command": "rm -rf /"})
    assert any(line.endswith('"rm -rf /"') or '"command": "rm -rf /"' in line for line in lines[-2:])
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    assert all(line.startswith("  ") for line in lines)


@pytest.mark.covers("prompt-approvals")
@pytest.mark.parametrize("blank", [*"\u115f\u2800\u3164\uffa0\ufe0f\u034f\U000e0100"], ids=ascii)
@pytest.mark.parametrize("length", [3, 90])
def test_invisible_characters_are_shown_by_their_number(blank: str, length: int) -> None:
    shown = "".join(asked({"command": f"ls{blank * length}; rm -rf /", f"path{blank}": "/" * 200}))
    assert blank not in shown
    number = json.dumps(blank)[1:-1]
    assert f"ls{number}" in shown
    assert f'"path{number}": "/' in shown


@pytest.mark.covers("prompt-approvals")
def test_the_end_of_a_long_value_is_shown_and_omitted_characters_are_counted() -> None:
    command = "ls" + " " * 300 + "y" * 900 + "; rm -rf /"
    (line, hint) = asked({"command": command})
    assert re.fullmatch(r'  command: "ls \[300 blanks\] yyy.* more characters …\] .*; rm -rf /"', line)
    assert hint == "  `approve` shows the values in full"
    assert "y" * 900 in asked({"command": command}, in_full=True)[0]


@pytest.mark.covers("prompt-approvals")
def test_more_values_than_a_screen_holds_are_counted_and_shown_on_demand() -> None:
    arguments = {f"key-{number}": "value" for number in range(5000)}
    assert "4800 more values are not shown: `approve` shows all of them" in asked(arguments)[-1]
    assert asked(arguments, in_full=True)[-1] == '  key-4999: "value"'


# Terminals


@pytest.mark.covers("errors")
async def test_json_on_a_terminal_is_escaped_and_elsewhere_as_it_is(place: Place) -> None:
    odd = f"odd{C1_DEL_BIDI}"
    command = ["doctor", "--json", "--port", "0", "--config", str(place.write({"good": {**good(), odd: 1}}))]
    environ = {**place.environ, "TERM": "xterm-256color"}
    async with on_a_terminal(str(PROGRAM), *command, env=environ, columns=300) as program:
        await program.ends()
    assert "odd\\u009b2J\\u007f\\u202e\\u200b" in program.screen.raw
    assert not any(char in program.screen.raw for char in "\x9b\x7f\u202e\u200b")
    ended = await place.run(*command)
    assert any(odd in each["what"] for each in json.loads(ended.out)["findings"])


# Keys over plain http


OVER_A_NETWORK = ["http://hub.example:7000", "ws://10.0.0.7"]
ENCRYPTED, HERE = ["https://hub.example", "wss://hub.example"], ["http://127.0.0.1:7000", "http://[::1]:7000"]


@pytest.mark.covers("errors")
@pytest.mark.parametrize("url", [*OVER_A_NETWORK, *ENCRYPTED, *HERE, "http://localhost:7000"])
def test_a_key_over_plain_http_is_a_warning_unless_it_stays_on_this_machine(url: str) -> None:
    assert (exposed(url, KEY) is not None) is (url in OVER_A_NETWORK)
    assert exposed(url, None) is None


@pytest.mark.covers("errors", "doctor")
async def test_agent_computer_and_doctor_warn_of_a_key_over_plain_http(place: Place) -> None:
    place.write({})
    where = ("--url", "http://0.0.0.0:9", "--api-key", KEY)  # this machine, by a name that does not say so
    words = "The API key goes to 0.0.0.0 unencrypted: others on the network can read it"
    ended = await place.run("agent", "room", *where)
    assert (ended.err.count(words), "Write https:// in --url" in ended.err) == (1, True)
    assert words in (await place.run("doctor", *where)).out
    program = await place.start("computer", "--name", "laptop", *where)
    await program.says(words)
    assert KEY not in program.said


# What others on this machine may change


@pytest.mark.covers("private-files", "up")
@cases(
    "words, which, mode",
    (("computer", "--name", "laptop", "--url", "http://127.0.0.1:9"), "", 0o770),
    (("computer", "--name", "laptop", "--url", "http://127.0.0.1:9"), "instances", 0o770),
    (("up", "--port", "0"), "", 0o707),
    ids=["computer", "a folder inside", "up"],
)
async def test_a_state_folder_that_others_may_write_to_is_refused(
    place: Place, words: tuple[str, ...], which: str, mode: int
) -> None:
    place.write({})
    folder = place.state / "a2c-smcp" / which
    folder.mkdir(parents=True)
    (place.state / "a2c-smcp").chmod(0o700)
    folder.chmod(mode)
    said = f"{folder} can be changed by others on this machine, and is not used; run: chmod go-w {folder}"
    (await place.run(*words)).refused(1, said)


@pytest.mark.covers("private-files", "doctor")
async def test_values_of_inputs_that_others_may_write_are_refused_and_doctor_says_so(place: Place) -> None:
    place.write({"good": good()})
    kept = place.folder / "mcp.inputs.json"
    kept.write_text('{"token": "x"}')
    kept.chmod(0o664)
    for words in (("computer", "--config", "mcp.json"), ("up",), ("computer", "--inputs", str(kept))):
        said = "mcp.inputs.json can be changed by others on this machine, and is not used. Run: chmod go-w"
        (await place.run(*words)).refused(2, said)
    ended = await place.run("doctor", "--port", "0")
    assert ended.code == 1
    assert "The values of inputs can be changed by others on this machine. Run: chmod go-w" in ended.out
