"""Whatever a user can cause: one sentence says what happened, one what to do, and nobody sees a traceback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from a2c_smcp import __version__
from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.errors import Failed, WrongUse, result_remedy
from a2c_smcp.computer import Computer
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import ToolResult
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import good
from tests.program import folder_of_program, run_program
from tests.server.test_program import certificate

SCRIPT = Path(sys.executable).with_name("a2c-smcp")
PATIENCE = 60.0

pytestmark = pytest.mark.covers("errors", "program-errors")


class Ended(NamedTuple):
    """How a program ended, and all that it said."""

    code: int
    out: str
    err: str


def run(*command: str | Path, folder: Path, typed: str = "") -> Ended:
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
    environ = {**theirs, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "80"}
    if command[0] == SCRIPT:
        done = run_program(*command[1:], cwd=folder, env=environ, typed=typed)
    elif isinstance(command[0], Path):
        done = run_program(*command[1:], cwd=folder, env=environ, typed=typed, script=command[0])
    else:
        done = subprocess.run(command, cwd=folder, env=environ, input=typed, capture_output=True, text=True, timeout=60)
    return Ended(done.returncode, done.stdout, done.stderr)


# Where it happens: several Servers, a computer, an agent, and a web server that is none of them.


@asynccontextmanager
async def server(
    host: str = "127.0.0.1", *, tls: tuple[Path, Path] | None = None, **settings: Any
) -> AsyncIterator[str]:
    listener = listen(host, 0)
    cert, key = tls or (None, None)
    async with serving(create_app(Settings(**settings)), listener, tls_cert=cert, tls_key=key):
        yield f"{'https' if tls else 'http'}://{address_of(listener)}"


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def laptop() -> Computer:
    computer = Computer("laptop", max_message=100_000)
    computer.add_server(good(default_tool_meta={"auto_apply": True}, forbidden_tools=["slow"]))

    @computer.tool(auto_apply=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    @computer.tool(auto_apply=True)
    def shout(text: str) -> ToolResult:
        """What a result says in its `_meta` is never sent in pieces."""
        return ToolResult("loud", meta={"text": text.upper() * 1000})

    @computer.tool
    def guarded() -> str:
        return "secret"

    return computer


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[dict[str, str]]:
    cert = certificate(folder, "hub")
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(server())
        places = {
            "hub": hub,
            "keyed": await stack.enter_async_context(server(auth=DefaultAuthenticationProvider("the right key"))),
            "older": await stack.enter_async_context(server(require_version="0.3")),
            "tls": await stack.enter_async_context(server("0.0.0.0", tls=cert)),
            "web": await stack.enter_async_context(web_server()),
            "cert": str(cert[0]),
            "folder": str(folder),
            "port": hub.rpartition(":")[2],
            "long": "a" * 200,
        }
        places["tls"] = places["tls"].replace("0.0.0.0", "127.0.0.1")
        places["tls_elsewhere"] = places["tls"].replace("127.0.0.1", "127.0.0.2")
        places["tls_port"] = places["tls"].rpartition(":")[2]
        computer = laptop()
        await stack.enter_async_context(hosted(computer, hub, "desk", folder))
        await ready(computer, "good")
        await stack.enter_async_context(AsyncSMCPAgentClient("planner", url=hub, office="taken"))
        yield places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The world, in a thread of its own for as long as the module needs it."""
    folder = tmp_path_factory.mktemp("world")
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    opened: Future[tuple[dict[str, str], Callable[[], None]]] = Future()

    async def live() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with world(folder) as places:
                opened.set_result((places, lambda: loop.call_soon_threadsafe(stop.set)))
                await stop.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    places, stop = opened.result(PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield {**places, "busy": str(busy.getsockname()[1])}
    stop()
    thread.join(PATIENCE)


FILES = {
    "not.json": '{"mcpServers": {"x": ',
    "wrong.json": '{"servers": {"x": {"type": "carrier-pigeon"}}}',
    "list.json": "[1]",
    "sound.json": '{"mcpServers": {"x": {"command": "x", "disabled": true}}}',
    "keys.json": '{"a2c_not_hashed": {"principal": "alice"}}',
}

START = "Start a Server with a2c-smcp server, or say with --url where it is."
KEY = "Give a valid one with --api-key or A2C_API_KEY; a2c-smcp key makes one for the Server's keys file."
TRUST = "If you trust it, give its certificate, or that of its CA, with --ca."
OLDER = "Protocol version not supported: this server speaks 0.3, not 0.4.0"
FILE = "Correct that file, or name another; `a2c-smcp doctor` checks all of it."
FORMS = "Write JSON, such as '{{\"a\": 1}}', or a=1 b=2, or - to read JSON from stdin."

FAILED = {
    # Getting there
    "agent room --url http://127.0.0.1:9": (
        "Server unavailable: http://127.0.0.1:9 cannot be reached, nothing listens there.",
        START,
    ),
    "agent room --url http://nowhere.invalid": (
        "Server unavailable: http://nowhere.invalid cannot be reached, …",
        START,
    ),
    "agent room --url {web}": (
        "{web} is there, but no A2C-SMCP Server.",
        "Correct --url, also the path, if the Server is part of another application.",
    ),
    "agent room --url {hub}/elsewhere": (
        "Not found: this server has /socket.io/, /healthz and /readyz.",
        "Correct --url, which names the Server, and its path where it has one.",
    ),
    "agent room --url https://127.0.0.1:{port}": (
        "https://127.0.0.1:{port} does not speak TLS.",
        "Write http:// in --url, or start the Server with --tls-cert.",
    ),
    "agent room --url http://127.0.0.1:{tls_port}": (
        "Server unavailable: http://127.0.0.1:{tls_port} cannot be reached, …",
        START,
    ),
    "agent room --url {tls}": ("{tls} shows a certificate that this machine does not trust.", TRUST),
    "agent room --url {tls_elsewhere} --ca {cert}": (
        "The certificate of {tls_elsewhere} is for another name.",
        "Write the name that it is for in --url, or give the Server a certificate for this one.",
    ),
    # Coming in
    "agent room --url {keyed}": ("{keyed} does not accept this key, or wants one.", KEY),
    "agent room --url {keyed} --api-key wrong": ("{keyed} does not accept this key, or wants one.", KEY),
    "computer --url {keyed} --api-key wrong": ("{keyed} does not accept this key, or wants one.", KEY),
    "agent room --url {older}": (f"{OLDER}.", "Install an a2c-smcp that speaks the version of this Server."),
    "computer --url {older}": (f"{OLDER}.", "Install an a2c-smcp that speaks the version of this Server."),
    "agent room --url {hub} --office taken --wait 0": (
        "An office holds one agent at a time: office 'taken' has an agent already, 'planner'.",
        "Wait until it has left (an MCP client leaves a minute after its last request), or give another --office.",
    ),
    "computer --url {hub} --name laptop": (
        "Name is taken in this office: another computer is called 'laptop'.",
        "Choose another with --name, or stop the one that has it.",
    ),
    # Calling
    "agent config basement --url {hub}": ("No such computer: 'basement'.", "Office 'desk' has laptop."),
    "agent config laptop --url {hub} --office empty": (
        "No such computer: 'laptop'.",
        "There is no computer in office 'empty': a2c-smcp computer adds this machine.",
    ),
    "agent call laptop ad --url {hub}": ("No such tool: 'ad'.", "Did you mean add?"),
    "agent call laptop add a=1 --url {hub}": (
        'Bad request: params: "b" is a required property.',
        "a2c-smcp agent tools laptop --json shows what its tools take.",
    ),
    "agent call laptop slow --url {hub}": (
        "Tool is forbidden: 'slow'.",
        "Its owner has forbidden it, by forbidden_tools or a policy; only its owner can change that.",
    ),
    "agent call laptop guarded --url {hub}": (
        "Approval refused: 'guarded' needs its owner's approval and nobody can be asked: …",
        "Its owner may allow it; call it again then.",
    ),
    "agent call laptop wait --timeout 1 --url {hub}": (
        "No answer in time: …",
        "It was cancelled there; --timeout gives it more time, --extend as much as it needs while it shows progress.",
    ),
    "agent call laptop shout text={long} --url {hub}": (
        "Answer too large: …",
        "Ask for less at a time.",
    ),
    # A Server of one's own
    "server --port {busy}": (
        "Cannot listen on 127.0.0.1:{busy}: Address already in use.",
        "Choose another --port, or 0 for a free one.",
    ),
    "up --config {folder}/sound.json --port {busy}": (
        "Port {busy} of 127.0.0.1 is used by another program.",
        "Give another --port, or 0 for a free one.",
    ),
    "server --port 0 --audit {folder}/nowhere/audit.jsonl": (
        "Bad configuration: there is no folder {folder}/nowhere for the audit file audit.jsonl.",
        "Correct that, or give another file with --audit.",
    ),
    "server --host 203.0.113.1 --api-key xxxxxxxxxxxxxxxx": (
        "Cannot listen on 203.0.113.1:7000: Cannot assign requested address.",
        "Give --host an address of this machine.",
    ),
}
"""Command lines that fail, with what happened and what to do; `…` stands for anything in between."""

NO_PROXY = ("--proxy is not the URL of an HTTP proxy.", "Write http://HOST:PORT.")
MOMENT = "Write one such as 2027-01-01T00:00:00Z, where Z is UTC, or 2027-01-01T00:00:00+08:00."
REFUSED = {
    "agent room --url nonsense": (
        "Bad configuration: 'nonsense' is not the URL of a Server, which looks like http://127.0.0.1:7000.",
        "Correct --url or A2C_URL.",
    ),
    "agent room --url http://[": (
        "Bad configuration: 'http://[' is not the URL of a Server, which looks like http://127.0.0.1:7000.",
        "Correct --url or A2C_URL.",
    ),
    "agent room --url http://hub..example": (
        "Bad configuration: 'http://hub..example' is not the URL of a Server, which looks like http://127.0.0.1:7000.",
        "Correct --url or A2C_URL.",
    ),
    "agent room --url http://127.0.0.1:70000": (
        "Bad configuration: 'http://127.0.0.1:70000' is not the URL of a Server, which looks like http://127.0.0.1:7000.",
        "Correct --url or A2C_URL.",
    ),
    "computer --url nonsense": (
        "Bad configuration: 'nonsense' is not the URL of a Server, which looks like http://127.0.0.1:7000.",
        "Correct --url or A2C_URL.",
    ),
    "agent room --ca {folder}/nowhere.pem": (
        "--ca, --cert or --cert-key cannot be used: No such file or directory.",
        "They name files in PEM format, which this user may read.",
    ),
    "agent call laptop add 2": ("'2' is no argument of a tool.", FORMS),
    "agent call laptop add [1]": ("The arguments of a tool are a JSON object.", FORMS),
    "computer --config {folder}/nowhere.json": (
        "Bad configuration: {folder}/nowhere.json: there is no such file.",
        FILE,
    ),
    "computer --config {folder}/not.json": ("Bad configuration: {folder}/not.json: line 1, column …", FILE),
    "computer --config {folder}/wrong.json": ("Bad configuration: {folder}/wrong.json: …", FILE),
    "computer --inputs {folder}/list.json": (
        "{folder}/list.json: is no JSON object.",
        'Write an object into it, such as {{"token": "…"}}.',
    ),
    "computer --yes --approve-by client": (
        "--yes lets every tool run: nobody is asked with --approve-by client.",
        "Leave one of them out.",
    ),
    "up --config {folder}/sound.json --approve-by nobody": (
        "--approve-by: 'nobody' is not one of 'owner', 'client'.",
        "`a2c-smcp up --help` shows how it is used.",
    ),
    "computer --idle-stop soon": ("--idle-stop: 'soon' is not a time.", "Write 30s, 10m or 1h."),
    "server --host 0.0.0.0": (
        "0.0.0.0 can be reached from other machines, and no key would be needed.",
        "Give --api-key, --keys-file or --jwt-…, or --insecure if that is what you want.",
    ),
    "server --keys-file {folder}/keys.json": (
        "{folder}/keys.json: …",
        "Correct that; `a2c-smcp key --help` describes keys and the files that hold them.",
    ),
    "server --tls-cert {cert}": ("--tls-cert and --tls-key go together.", "Give both, or neither."),
    "server --port 70000": (
        "--port: must be at most 65535.",
        "`a2c-smcp server --help` shows how it is used.",
    ),
    "server --port many": ("--port: must be a whole number.", "`a2c-smcp server --help` shows how it is used."),
    "agent call laptop add --timeout 0": (
        "--timeout: must be at least 1.",
        "`a2c-smcp agent call --help` shows how it is used.",
    ),
    "agent room --log-level loud": (
        "--log-level: 'loud' is not one of 'debug', 'info', 'warning', 'error'.",
        "`a2c-smcp agent room --help` shows how it is used.",
    ),
    "agent room --proxy nonsense": NO_PROXY,
    "agent --proxy http://user:secret@ room": NO_PROXY,
    "computer --proxy nonsense": NO_PROXY,
    "doctor --proxy socks5://127.0.0.1:1080": NO_PROXY,
    "computer --inputs {folder}/nowhere.json": (
        "{folder}/nowhere.json: cannot be read: No such file or directory.",
        "Name a file that can.",
    ),
    "key --principal alice --role king": (
        "--role: 'king' is not one of 'agent', 'computer'.",
        "`a2c-smcp key --help` shows how it is used.",
    ),
    "key --principal alice --expires tomorrow": ("--expires: 'tomorrow' is no date and time.", MOMENT),
    "key --principal alice --expires 2999-01-01": ("--expires: '2999-01-01' does not say its time zone.", MOMENT),
    "key --principal alice --expires 2020-01-01T00:00:00Z": (
        "--expires: 2020-01-01T00:00:00Z is over.",
        "Give a later one.",
    ),
    "key --principal alice --add-to {folder}/list.json": (
        "{folder}/list.json: …",
        "Correct that file, or name another with --add-to.",
    ),
    "up": ("There is no a2c.toml, a2c.json or mcp.json here.", "`a2c-smcp import` makes one …"),
    "up --config {folder}/not.json": ("Bad configuration: {folder}/not.json: line 1, column …", FILE),
    "import nowhere.json": ("There is no file 'nowhere.json'.", "Name one, or one of …"),
    "export --config {folder}/nowhere.json": (
        "{folder}/nowhere.json: there is no such file.",
        "Name another with --config; `a2c-smcp import` makes an a2c.json.",
    ),
    "doctor --url nonsense": (
        "Bad configuration: 'nonsense' is not the URL of a Server, which looks like http://127.0.0.1:7000.",
        "Correct --url or A2C_URL.",
    ),
    "demo now": ("Got unexpected extra argument(s) (now).", "`a2c-smcp demo --help` shows how it is used."),
    "frobnicate": ("No such command 'frobnicate'.", "`a2c-smcp --help` shows how it is used."),
    "agent room --frobnicate": ("No such option: --frobnicate …", "`a2c-smcp agent room --help` shows how it is used."),
}
"""Command lines that cannot be meant."""


def says(found: str, wanted: tuple[str, str], places: dict[str, str]) -> bool:
    """Whether a text is these two sentences, and nothing else."""
    text, body = " ".join(wanted).format(**places), found.removesuffix("\n")
    begins, gap, ends = text.partition("…")
    is_alike = bool(gap) and body.startswith(begins) and body.endswith(ends)
    return "\n" not in body and (body == text or is_alike)


@pytest.mark.parametrize("line", FAILED)
def test_failures_say_what_happened_and_what_to_do(line: str, places: dict[str, str], tmp_path: Path) -> None:
    ended = run(SCRIPT, *line.format(**places).split(), folder=tmp_path)
    if line.startswith("computer"):
        before = r"^no MCP servers: .*\n|^to (?:bind|know) .*:\n  .*\n"
        ended = ended._replace(err=re.sub(before, "", ended.err, flags=re.MULTILINE))
    assert (ended.code, ended.out) == (1, ""), ended.err
    assert says(ended.err, FAILED[line], places), ended.err


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_command_lines_say_what_is_wrong_and_what_to_do(
    line: str, places: dict[str, str], tmp_path: Path
) -> None:
    ended = run(SCRIPT, *line.format(**places).split(), folder=tmp_path)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert says(ended.err, REFUSED[line], places), ended.err


# While it goes on: a computer whose Server or MCP servers are not there waits for them

SERVERS = {
    "servers": {
        "missing": {"command": "no-such-command"},
        "needs": {"command": "x", "args": ["${input:token}"]},
        "undefined": {"command": "x", "args": ["${input:nobody}"]},
    },
    "inputs": [{"id": "token", "type": "promptString", "description": "A token", "password": True}],
}
LINES = {
    "missing command": (
        "missing: failed (Command not found: 'no-such-command' is not on PATH. "
        "Install it, or write its whole path in the configuration.)"
    ),
    "missing input": "  token: it has no value (A token); give it explicitly, in the environment as A2C_INPUT_TOK",
    "unknown input": "server 'undefined' uses 'nobody': define it under `inputs`, or correct the placeholder",
    "unreachable Server": f"cannot be reached, nothing listens there; trying again. {START}",
}


TRUST_REMOTE = (
    "This machine does not trust the certificate of that MCP server, or of one that it calls: put the file of its CA "
    "into SSL_CERT_FILE, or NODE_EXTRA_CA_CERTS for Node, and start this program again.)"
)


def until_said(process: subprocess.Popen[str], wanted: set[str]) -> list[str]:
    """The lines until all of these have been among them."""
    assert process.stderr
    lines: list[str] = []
    while missing := {words for words in wanted if not any(words in line for line in lines)}:
        line = process.stderr.readline()
        assert line, (missing, lines)
        lines.append(line)
    return lines


def watched(line: str, folder: Path) -> subprocess.Popen[str]:
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
    environ = {**theirs, "XDG_STATE_HOME": str(folder / "state")}
    command = [folder_of_program() / "a2c-smcp", *line.split()]
    return subprocess.Popen(command, cwd=folder, env=environ, stdin=-3, stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("computer --config servers.json --url http://127.0.0.1:9", {*LINES.values()}),
        ("computer --url {tls}", {f"trying again. {TRUST}"}),
        ("computer --config remote.json --url http://127.0.0.1:9", {TRUST_REMOTE}),
    ],
    ids=["servers and Server missing", "certificate not trusted", "certificate of an MCP server not trusted"],
)
def test_a_computer_says_what_it_waits_for_and_what_to_do(
    line: str, wanted: set[str], places: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "servers.json").write_text(json.dumps(SERVERS), "utf-8")
    (tmp_path / "remote.json").write_text(json.dumps({"servers": {"remote": {"url": places["tls"]}}}), "utf-8")
    with watched(line.format(**places), tmp_path) as process:
        giving_up = threading.Timer(PATIENCE, process.kill)
        giving_up.start()
        try:
            said = until_said(process, wanted)
        finally:
            process.terminate()
            _, rest = process.communicate()
            giving_up.cancel()
    assert process.returncode == 0
    assert "Traceback" not in "".join([*said, rest])


# What nobody has foreseen, and those who want to know more

UNFORESEEN = """
import sys, typer
from a2c_smcp.cli.app import carry_out
app = typer.Typer()
@app.callback()
def options(debug: bool = False) -> None: ...
@app.command()
def divide(secret: str) -> None:
    raise ZeroDivisionError(secret)
carry_out(app, sys.argv[1:])
"""
BUG = (
    "This is a bug in a2c-smcp: unexpected error ZeroDivisionError. "
    "Run it again as `a2c-smcp --debug …`, and report what it prints.\n"
)


@pytest.fixture
def divides(tmp_path: Path) -> Path:
    script = tmp_path / "divides.py"
    script.write_text(UNFORESEEN)
    return script


def test_an_unexpected_error_is_called_a_bug_and_its_text_is_not_shown(divides: Path, tmp_path: Path) -> None:
    ended = run(divides, "divide", "hunter2", folder=tmp_path)
    assert ended == Ended(1, "", BUG)


def test_debug_shows_the_traceback_of_an_unexpected_error(divides: Path, tmp_path: Path) -> None:
    ended = run(divides, "--debug", "divide", "hunter2", folder=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("Traceback (most recent call last):")
    assert ended.err.endswith(f"ZeroDivisionError: hunter2\n{BUG}")


def test_debug_shows_the_traceback_of_an_expected_failure(tmp_path: Path) -> None:
    line = ("agent", "room", "--url", "http://127.0.0.1:9")
    plain, debugged = run(SCRIPT, *line, folder=tmp_path), run(SCRIPT, "--debug", *line, folder=tmp_path)
    assert (debugged.code, debugged.out) == (1, "")
    assert "a2c_smcp.errors.Unavailable: " in debugged.err
    assert debugged.err.splitlines()[-1:] == plain.err.splitlines()


def test_without_its_extra_the_program_says_how_to_get_it(tmp_path: Path) -> None:
    program = "import sys; sys.modules['typer'] = None; from a2c_smcp.cli import main; main()"
    ended = run(sys.executable, "-c", program, "--help", folder=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(
        r"typer is not installed\. Install a2c-smcp with its extras: .*pip install .+\[all\]'\n", ended.err
    )


def test_a_closed_stdout_ends_the_program_quietly(places: dict[str, str], tmp_path: Path) -> None:
    line = f"{folder_of_program()}/a2c-smcp agent tools --url {places['hub']} --office nobody-{os.getpid()} | true"
    assert run("bash", "-c", f"set -o pipefail; {line}", folder=tmp_path).err == ""


def test_version_is_printed_without_importing_the_rest(tmp_path: Path) -> None:
    libraries = "for name in ('typer', 'rich', 'pydantic', 'aiohttp', 'socketio'): sys.modules[name] = None"
    program = f"import sys\n{libraries}\nfrom a2c_smcp.cli import main; main()"
    ended = run(sys.executable, "-c", program, "--version", folder=tmp_path)
    assert ended == Ended(0, f"a2c-smcp {__version__}\n", "")


@pytest.mark.parametrize(
    "text",
    ["it is so", "it is so.", "it is so. ", "it is so:.", "it is so..", "it is so,\n"],
)
def test_a_sentence_ends_with_one_mark(text: str) -> None:
    assert str(Failed(text, "Do this.")) == WrongUse(text, "Do this.").message == "it is so. Do this."
    assert str(Failed("is it?", "Do this.")) == "is it? Do this."


@pytest.mark.parametrize(
    ("needed", "words"), [("elicitation", "nobody could answer"), ("sampling", "than `agent call` can do")]
)
def test_a_tool_that_lacks_its_client_is_explained(needed: str, words: str) -> None:
    error = {"code": -32021, "message": "lacks", "data": {"requiredCapabilities": {needed: {}}}}
    result = CallToolResult(is_error=True, meta={"a2c_mcp_error": error})
    assert words in result_remedy(result, "laptop")
