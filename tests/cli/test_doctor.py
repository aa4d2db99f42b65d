"""`a2c-smcp doctor`: what would not work is found, with what to do, and nothing secret is said."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.cli.doctor import checks
from a2c_smcp.cli.doctor.findings import Certificate, ServerProbe, Severity, Situation
from a2c_smcp.installation import EXTRAS
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.computer.supervised import SERVERS
from tests.stage.place import Place, good
from tests.stage.strangers import answering
from tests.stage.tls import certificate

pytestmark = pytest.mark.covers("doctor")

SECRET = "never-to-be-seen-7b1f"


@pytest.fixture
def examine(place: Place) -> Callable[..., Any]:
    """Runs it; its exit code must be what its findings say. `{check: [(level, what and remedy), …]}`."""

    async def examine(*options: str, **environ: str) -> dict[str, list[tuple[str, str]]]:
        port = () if "--port" in options else ("--port", "0")
        ended = await place.run("doctor", "--json", *port, *options, **environ)
        answer = json.loads(ended.out)
        has_problem = any(each["level"] == "problem" for each in answer["findings"])
        assert (ended.code, answer["works"]) == (int(has_problem), not has_problem)
        assert SECRET not in ended.out + ended.err
        assert all(each["remedy"] for each in answer["findings"] if each["level"] != "ok")
        found: dict[str, list[tuple[str, str]]] = {}
        for each in answer["findings"]:
            found.setdefault(each["check"], []).append((each["level"], f"{each['what']} {each['remedy']}".strip()))
        return found

    return examine


def problem(findings: list[tuple[str, str]]) -> str:
    """The text of the only finding of a check, which is a problem."""
    ((level, words),) = findings
    assert level == "problem"
    return words


async def test_a_machine_where_it_works_has_no_problems(place: Place, examine: Any) -> None:
    place.write({"good": good()})
    found = await examine()
    assert {level for each in found.values() for level, _ in each} == {"ok"}
    assert found["configuration"] == [("ok", "mcp.json: MCP servers good.")]
    assert found["python"][0][1].startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert found["state folder"] == [("ok", f"{place.state / 'a2c-smcp'} is yours alone.")]
    assert not place.state.exists()
    assert "server" not in found


async def test_without_json_each_finding_is_a_line(place: Place) -> None:
    place.write({"good": good(), "gone": {"command": "no-such-command"}})
    ended = await place.run("doctor", "--port", "0")
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert all(re.match(r"(ok|warning|problem) +(\w| )+ ", line) for line in lines)
    (line,) = [line for line in lines if line.startswith("problem")]
    assert "'no-such-command' of server 'gone' is not on PATH. Install it" in line


async def test_every_fault_in_a_file_is_reported_with_file_and_field(place: Place, examine: Any) -> None:
    faulty = {"a": {"command": 5, "env": {"TOKEN": SECRET}}, "b": {"type": "nope"}, "c": {"command": "x", "vlr": "."}}
    path = place.write(faulty, inputs=[{"id": "q", "type": "zzz", "default": SECRET}])
    found = (await examine())["configuration"]
    assert [level for level, _ in found] == ["problem"] * 3
    for (_, words), field in zip(found, ("server 'a': command", "server 'b': type", "input 'q': type"), strict=True):
        assert words.startswith(f"{path}: ")
        assert field in words


FILES = {
    "nothing there": ({}, "problem", "a2c-smcp import"),
    "not JSON": ({"a2c.json": "{"}, "problem", "a2c.json: line 1"),
    "not TOML": ({"a2c.toml": "x"}, "problem", "not TOML"),
    "no such setting": ({"a2c.toml": "[server]\nprt = 1\n[servers]"}, "problem", "server.prt"),
    "no servers": ({"a2c.json": '{"servers": {}}'}, "warning", "has no MCP servers"),
    "a field without a meaning": (
        {"mcp.json": '{"servers": {"a": {"url": "http://x", "tol": 1}}}'},
        "warning",
        "a.tol",
    ),
    "two files": ({"a2c.json": '{"servers": {}}', "mcp.json": "{}"}, "warning", "mcp.json is not used"),
}


@pytest.mark.parametrize(("files", "level", "words"), FILES.values(), ids=FILES)
async def test_problems_of_configuration_files(
    place: Place, examine: Any, files: dict[str, str], level: str, words: str
) -> None:
    for name, text in files.items():
        (place.folder / name).write_text(text, "utf-8")
    found = (await examine())["configuration"]
    assert [each for each in found if each[0] == level and words in each[1]], found


async def test_missing_commands_are_reported_with_how_to_install_them(place: Place, examine: Any) -> None:
    servers = {
        "node": {"command": "npx", "env": {"PATH": "/nowhere"}},
        "path": {"command": "./here"},
        "folder": {"command": sys.executable, "cwd": "/nowhere"},
        "later": {"command": "${input:which}"},
        "off": {"command": "no-such-command", "disabled": True},
    }
    place.write(servers, inputs=[{"id": "which", "type": "promptString", "default": "x"}])
    found = (await examine())["commands"]
    assert [level for level, _ in found] == ["problem"] * 3
    told = " ".join(words for _, words in found)
    wanted = ("'npx'", "nodejs.org", "'./here'", "not executable", "'/nowhere'")
    assert [each for each in wanted if each not in told] == []


INPUTS = [
    {"id": "token", "type": "promptString", "description": "A token", "password": True},
    {"id": "given", "type": "promptString", "default": "x"},
    {"id": "colour", "type": "pickString", "description": "Colour", "options": ["red"]},
    {"id": "printed", "type": "command", "command": "no-such-command"},
    {"id": "unused", "type": "promptString", "description": "Nobody wants it"},
]


async def test_what_a_sandbox_can_do_here_is_said_and_one_that_cannot_be_made_is_a_problem(
    place: Place, examine: Any
) -> None:
    box = {"read": ["/no/such/folder"]}
    place.write({"good": good(), "boxed": {**good(), "sandbox": box}, "open": {**good(), "sandbox": {"write": "any"}}})
    found = (await examine())["sandbox"]
    assert found[0][0] == "ok"
    assert "andbox" in found[0][1]
    if possible().landlock:
        assert "It cannot tell hosts apart" in found[0][1]
    if possible().ports:
        assert "files, moving files between folders, truncating files, TCP ports" in found[0][1]
        (level, missing), (other, home) = (each for each in found[1:] if "not enforced" not in each[1])
        assert (level, other) == ("problem", "warning")
        assert "The sandbox of server 'boxed' cannot be made, so it does not start: sandbox.read:" in missing
        assert "The sandbox of server 'open' lets it write to your home folder" in home


async def test_inputs_without_a_value_are_asked_for_on_a_terminal_only(place: Place, examine: Any) -> None:
    args = ["${input:token}", "${input:given}", "${input:colour}", "${input:printed}", "${input:nowhere}"]
    place.write({"asks": {"command": sys.executable, "args": args}}, inputs=INPUTS)
    told = (await examine())["inputs"]
    found = {re.findall(r"nput '(\w+)'", words)[0]: (level, words) for level, words in told}
    levels = {"token": "warning", "colour": "warning", "printed": "problem", "nowhere": "problem"}
    assert {id_: level for id_, (level, _) in found.items()} == levels
    assert "A2C_INPUT_TOKEN" in found["token"][1]
    assert "(A token)" in found["token"][1]
    found = (await examine("--no-input", A2C_INPUT_TOKEN=SECRET, A2C_INPUT_COLOUR=SECRET))["inputs"]
    assert not [words for _, words in found if "token" in words]
    assert [level for level, words in found if "must be one of 'red'" in words] == ["problem"]


async def test_a_secret_without_a_keyring_is_a_warning(place: Place, examine: Any) -> None:
    place.write({"asks": {"command": sys.executable, "args": ["${input:token}"]}}, inputs=INPUTS)
    found = await examine()
    assert (found["keyring"][0][0], found["inputs"][0][0]) == ("warning", "warning")
    paper = place.folder / "paper.json"
    paper.write_text(json.dumps({"a2c-smcp/token": SECRET}), "utf-8")
    backend = {"PYTHON_KEYRING_BACKEND": "paper_keyring.PaperKeyring", "PYTHONPATH": str(SERVERS)}
    found = await examine(**backend, PAPER_KEYRING=str(paper))
    assert found["keyring"] == [("ok", "Secrets can be kept in paper_keyring.PaperKeyring.")]
    assert found["inputs"][0][0] == "ok"


async def test_values_in_the_file_beside_the_configuration_are_known(place: Place, examine: Any) -> None:
    place.write({"asks": {"command": sys.executable, "args": ["${input:token}"]}}, inputs=INPUTS)
    values = place.folder / "mcp.inputs.json"
    values.write_text(json.dumps({"token": SECRET}), "utf-8")
    found = await examine()
    assert found["keyring"] == [("ok", "There is no keyring here; mcp.inputs.json holds the secrets.")]
    assert found["inputs"] == [("ok", "All have a value, or a command for it: token.")]
    assert (await place.paste("git init --quiet .")).code == 0
    warning = "git does not ignore mcp.inputs.json, which holds secrets. Put it on .gitignore."
    assert (await examine())["inputs"][1] == ("warning", warning)
    values.write_text("{", "utf-8")
    assert "mcp.inputs.json: is no JSON" in problem((await examine())["inputs"])


async def test_secrets_are_listed_by_name_and_possible_secrets_are_warnings(place: Place, examine: Any) -> None:
    env = {"API_TOKEN": SECRET, "BLOB": "f3a9c0d1e2b34567f3a9c0d1e2b34567", "PASSWORD": "abc", "WORKDIR": "/srv"}
    known = {**good(), "env": env}
    place.write({"good": known, "plain": {**good(), "env": {"BLOB": env["BLOB"]}, "secrets": {"BLOB": False}}})
    found = (await examine())["secrets"]
    assert [level for level, _ in found] == ["warning", "warning", "ok"]
    assert found[0][1].startswith("BLOB of server 'good' may be a secret: it is hidden in logs, and not in results. S")
    assert '"secrets": {"BLOB": true}' in found[0][1]
    assert "PASSWORD of server 'good' is a secret of fewer than 6 characters" in found[1][1]
    assert found[2][1] == "Treated as secret: good: API_TOKEN, PASSWORD; suspected: BLOB."


async def test_the_state_folder_is_private_and_can_be_written(place: Place, examine: Any) -> None:
    place.write({"good": good()})
    kept = place.state / "a2c-smcp" / "up"
    kept.mkdir(mode=0o700, parents=True)
    (place.state / "a2c-smcp").chmod(0o700)
    key = kept / "some.key"
    key.write_text(SECRET)
    key.chmod(0o644)
    ((level, words),) = (await examine())["state folder"]
    assert level == "warning"
    assert str(key) in words
    place.state.rename(place.folder / "elsewhere")
    place.state.write_text("not a folder")
    assert "XDG_STATE_HOME" in problem((await examine())["state folder"])


async def test_a_port_in_use_is_a_problem_only_if_a_server_would_run_here(
    place: Place, examine: Any, shared_hub: Any
) -> None:
    place.write({"good": good()})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"Port {port}" in problem((await examine("--port", port))["port"])
        assert "port" not in await examine("--port", port, "--url", shared_hub.url)


# A Server


async def test_a_server_that_accepts_the_key_has_no_problems(serve: Any, examine: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(SECRET))
    found = await examine(A2C_URL=hub.url, A2C_API_KEY=SECRET)
    told = {check: found[check] for check in ("server", "clock", "protocol", "API key")}
    assert {level for each in told.values() for level, _ in each} == {"ok"}
    assert "configuration" not in found


async def test_a_key_that_is_refused_is_a_problem(serve: Any, examine: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right one"))
    found = await examine("--url", hub.url, "--api-key", SECRET)
    assert (found["server"][0][0], "does not accept this key" in problem(found["API key"])) == ("ok", True)


async def test_a_server_of_another_version_is_a_problem(serve: Any, examine: Any) -> None:
    hub = await serve(require_version="0.9")
    assert "speaks 0.9" in problem((await examine("--url", hub.url))["protocol"])


async def test_a_server_that_is_not_there_is_a_problem(examine: Any) -> None:
    found = await examine("--url", f"http://user:{SECRET}@127.0.0.1:1")
    assert "http://127.0.0.1:1 cannot be reached" in problem(found["server"])
    assert not found.keys() & {"clock", "API key", "protocol"}


async def test_another_program_at_the_url_and_a_wrong_clock_are_reported(examine: Any) -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)

    async with answering(f"404 Not Found\r\nDate: {date}") as stranger:
        found = await examine("--url", stranger.url)
    assert [found[check][0][0] for check in ("server", "clock", "API key")] == ["warning", "warning", "problem"]
    assert "404" in found["server"][0][1]
    assert "ahead of the Server's" in found["clock"][0][1]


async def test_the_certificate_of_a_server_is_checked(place: Place, examine: Any) -> None:
    cert, key = certificate(place.folder, "cert")
    program = await place.start("server", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key))
    url = (await program.says("listening on ")).removeprefix("listening on ")
    assert "--ca" in problem((await examine("--url", url))["certificate"])
    found = await examine("--url", url, "--ca", str(cert))
    assert "expires in 0 days" in found["certificate"][0][1]
    assert (found["certificate"][0][0], found["API key"][0][0]) == ("warning", "ok")


def test_findings_about_certificates() -> None:
    def judged(found: Certificate) -> tuple[Severity, str]:
        probe = ServerProbe(place="https://hub", has_key=True, certificate=found)
        (finding,) = checks.certificate(Situation(probe=probe))
        return finding.level, f"{finding.what} {finding.remedy}"

    year = datetime.now(UTC) + timedelta(days=365)
    assert judged(Certificate(year.timestamp()))[0] == "ok"
    level, words = judged(Certificate(fault="certificate has expired", number=10))
    assert (level, "renew" in words) == ("problem", True)
    assert "--url" in judged(Certificate(fault="Hostname mismatch", number=62))[1]


async def test_a_running_up_is_checked_with_its_own_key(place: Place, examine: Any) -> None:
    place.write({"good": good()})
    program = await place.start("up", "--port", "0")
    url = (await program.says("listening on ")).removeprefix("listening on ")
    found = await examine()
    assert found["port"] == [("ok", f"a2c-smcp up is running at {url}.")]
    assert found["API key"] == [("ok", "The Server accepts the key.")]
    await program.stops(signal.SIGINT)
    assert "server" not in await examine()


def test_the_table_of_extras_is_that_of_the_package_and_all_brings_every_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert EXTRAS.keys() == extras.keys()
    assert everything == f"a2c-smcp[{','.join(extras)}]"
