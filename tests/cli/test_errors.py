"""Whatever a user can cause: one sentence says what happened, one what to do, and nobody sees a traceback."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from a2c_smcp import __version__
from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.bridging import explain_with
from a2c_smcp.cli.errors import Failed, WrongUse, result_remedy
from a2c_smcp.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import ToolResult
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import good
from tests.program import folder_of_program, run_program
from tests.stage.cases import cases
from tests.stage.place import Ended, Place
from tests.stage.strangers import answering
from tests.stage.tls import certificate

SCRIPT = Path(sys.executable).with_name("a2c-smcp")

pytestmark = pytest.mark.covers("errors", "program-errors")


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


def laptop() -> Computer:
    computer = Computer("laptop", max_message=100_000)
    computer.add_server(good(default_tool_meta={"auto_apply": True}, forbidden_tools=["slow"]))

    @computer.tool(auto_apply=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    @computer.tool(auto_apply=True)
    def shout(text: str) -> ToolResult:
        """The `_meta` of a result is never sent in pieces."""
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
            "web": (await stack.enter_async_context(answering("404 Not Found"))).url,
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
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(world(folder)) as places,
        socket.create_server(("127.0.0.1", 0)) as busy,
    ):
        yield {**places, "busy": str(busy.getsockname()[1])}


FILES = {
    "not.json": '{"mcpServers": {"x": ',
    "wrong.json": '{"servers": {"x": {"type": "carrier-pigeon"}}}',
    "list.json": "[1]",
    "sound.json": '{"mcpServers": {"x": {"command": "x", "disabled": true}}}',
    "keys.json": '{"a2c_not_hashed": {"principal": "alice"}}',
}

START = "Start a Server with a2c-smcp server, or say with --url where it is."
TRUST = "If you trust it, give its certificate, or that of its CA, with --ca."
SENTENCES = {
    "START": START,
    "TRUST": TRUST,
    "KEY": "Give a valid one with --api-key or A2C_API_KEY; a2c-smcp key makes one for the Server's keys file.",
    "OLDER": "Protocol version not supported: this server speaks 0.3, not 0.4.0",
    "FILE": "Correct that file, or name another; `a2c-smcp doctor` checks all of it.",
    "FORMS": "Write JSON, such as '{{\"a\": 1}}', or a=1 b=2, or - to read JSON from stdin.",
    "MOMENT": "Write one such as 2027-01-01T00:00:00Z, where Z is UTC, or 2027-01-01T00:00:00+08:00.",
    "NO_URL": "Bad configuration: '{url}' is not the URL of a Server, which looks like http://127.0.0.1:7000. "
    "Correct --url or A2C_URL.",
    "NODE_URL": "Say where they do with --node-url, such as http://10.0.0.5:7000.",
}


def transcript(text: str) -> dict[str, str]:
    """What is said to each command line: the indented lines below it, or below several."""
    blocks = re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", text, re.MULTILINE)
    return {command: " ".join(said.split()) for commands, said in blocks for command in commands.splitlines()}


FAILED = transcript("""
agent room --url http://127.0.0.1:9
    Server unavailable: http://127.0.0.1:9 cannot be reached, nothing listens there. START
office ls --url http://127.0.0.1:9 --admin-key xxxxxxxxxxxxxxxx
    Server unavailable: http://127.0.0.1:9 cannot be reached, nothing listens there. START
agent room --url http://nowhere.invalid
    Server unavailable: http://nowhere.invalid cannot be reached, … START
agent room --url {web}
    {web} is there, but no A2C-SMCP Server. Correct --url, also the path, if the Server is part of another application.
agent room --url {hub}/elsewhere
    Not found: this server has /socket.io/, /healthz and /readyz.
    Correct --url, which names the Server, and its path where it has one.
agent room --url https://127.0.0.1:{port}
    https://127.0.0.1:{port} does not speak TLS. Write http:// in --url, or start the Server with --tls-cert.
agent room --url http://127.0.0.1:{tls_port}
    http://127.0.0.1:{tls_port} speaks https. Write https:// in --url.
office ls --url http://127.0.0.1:{tls_port} --admin-key xxxxxxxxxxxxxxxx
    http://127.0.0.1:{tls_port} speaks https. Write https:// in --url.
office ls --url {tls} --admin-key xxxxxxxxxxxxxxxx
    {tls} shows a certificate that this machine does not trust. TRUST
office ls --url {tls_elsewhere} --ca {cert} --admin-key xxxxxxxxxxxxxxxx
    The certificate of {tls_elsewhere} is for another name.
    Write the name that it is for in --url, or give the Server a certificate for this one.
office ls --url https://127.0.0.1:{port} --admin-key xxxxxxxxxxxxxxxx
    https://127.0.0.1:{port} does not speak TLS. Write http:// in --url, or start the Server with --tls-cert.
agent room --url {tls}
    {tls} shows a certificate that this machine does not trust. TRUST
agent room --url {tls_elsewhere} --ca {cert}
    The certificate of {tls_elsewhere} is for another name.
    Write the name that it is for in --url, or give the Server a certificate for this one.
agent room --url {keyed}
agent room --url {keyed} --api-key wrong
computer --url {keyed} --api-key wrong
    {keyed} does not accept this key, or wants one. KEY
agent room --url {older}
computer --url {older}
    OLDER. Install an a2c-smcp that speaks the version of this Server.
agent room --url {hub} --office taken --wait 0
    An office holds one agent at a time: office 'taken' has an agent already, 'planner'.
    Wait until it has left (an MCP client leaves a minute after its last request), or give another --office.
computer --url {hub} --name laptop
    Name is taken in this office: another computer is called 'laptop'.
    Choose another with --name, or stop the one that has it.
agent config basement --url {hub}
    No such computer: 'basement'. Office 'desk' has laptop.
agent config laptop --url {hub} --office empty
    No such computer: 'laptop'. There is no computer in office 'empty': a2c-smcp computer adds this machine.
agent call laptop ad --url {hub}
    No such tool: 'ad'. Did you mean add? a2c-smcp agent tools shows what there is.
agent call laptop add a=1 --url {hub}
    Bad request: params: "b" is a required property. a2c-smcp agent tools laptop --json shows what its tools take.
agent call laptop slow --url {hub}
    Tool is forbidden: 'slow'.
    Its owner has forbidden it, by forbidden_tools or a policy; only its owner can change that.
agent call laptop guarded --url {hub}
    Approval refused: 'guarded' needs its owner's approval and nobody can be asked: …
    Its owner may allow it; call it again then.
agent call laptop wait --timeout 1 --url {hub}
    No answer in time: …
    It was cancelled there; --timeout gives it more time, --extend as much as it needs while it shows progress.
agent call laptop shout text={long} --url {hub}
    Answer too large: … Ask for less at a time.
server --port {busy}
    Cannot listen on 127.0.0.1:{busy}: Address already in use. Choose another --port, or 0 for a free one.
up --config {folder}/sound.json --port {busy}
    Port {busy} of 127.0.0.1 is used by another program. Give another --port, or 0 for a free one.
server --port 0 --audit {folder}/nowhere/audit.jsonl
    Bad configuration: there is no folder {folder}/nowhere for the audit file audit.jsonl.
    Correct that, or give another file with --audit.
server --host 203.0.113.1 --api-key xxxxxxxxxxxxxxxx
    Cannot listen on 203.0.113.1:7000: Cannot assign requested address. Give --host an address of this machine.
""")
"""Command lines that fail, with what happened and what to do; `…` stands for anything in between."""

REFUSED = transcript("""
agent room --url nonsense
agent room --url http://[
agent room --url http://hub..example
agent room --url http://127.0.0.1:70000
computer --url nonsense
doctor --url nonsense
    NO_URL
agent room --ca {folder}/nowhere.pem
    --ca, --cert or --cert-key cannot be used: No such file or directory.
    They name files in PEM format, which this user may read.
agent call laptop add 2
    '2' is no argument of a tool. FORMS
agent call laptop add [1]
    The arguments of a tool are a JSON object. FORMS
computer --config {folder}/nowhere.json
    Bad configuration: {folder}/nowhere.json: there is no such file. FILE
computer --config {folder}/not.json
up --config {folder}/not.json
    Bad configuration: {folder}/not.json: line 1, column … FILE
computer --config {folder}/wrong.json
    Bad configuration: {folder}/wrong.json: … FILE
computer --inputs {folder}/list.json
    {folder}/list.json: is no JSON object. Write an object into it, such as {{"token": "…"}}.
computer --yes --approve-by client
    --yes lets every tool run: nobody is asked with --approve-by client. Leave one of them out.
up --config {folder}/sound.json --approve-by nobody
    --approve-by: 'nobody' is not one of 'owner', 'client'. `a2c-smcp up --help` shows how it is used.
computer --idle-stop soon
    --idle-stop: 'soon' is not a time. Write 30s, 10m or 1h.
server --host 0.0.0.0
    0.0.0.0 can be reached from other machines, and no key would be needed.
    Give --api-key, --keys-file or --jwt-…, or --insecure if that is what you want.
server --keys-file {folder}/keys.json
    {folder}/keys.json: … Correct that; `a2c-smcp key --help` describes keys and the files that hold them.
server --tls-cert {cert}
    --tls-cert and --tls-key go together. Give both, or neither.
server --port 70000
    --port: must be at most 65535. `a2c-smcp server --help` shows how it is used.
server --port many
    --port: must be a whole number. `a2c-smcp server --help` shows how it is used.
agent call laptop add --timeout 0
    --timeout: must be at least 1. `a2c-smcp agent call --help` shows how it is used.
agent room --log-level loud
    --log-level: 'loud' is not one of 'debug', 'info', 'warning', 'error'.
    `a2c-smcp agent room --help` shows how it is used.
agent room --proxy nonsense
agent --proxy http://user:secret@ room
computer --proxy nonsense
doctor --proxy socks5://127.0.0.1:1080
    --proxy is not the URL of an HTTP proxy. Write http://HOST:PORT.
computer --inputs {folder}/nowhere.json
    {folder}/nowhere.json: cannot be read: No such file or directory. Name a file that can.
key --principal alice --role king
    --role: 'king' is not one of 'agent', 'computer', 'viewer', 'operator'. `a2c-smcp key --help` shows how it is used.
key --principal alice --expires tomorrow
    --expires: 'tomorrow' is no date and time. MOMENT
key --principal alice --expires 2999-01-01
    --expires: '2999-01-01' does not say its time zone. MOMENT
key --principal alice --expires 2020-01-01T00:00:00Z
    --expires: 2020-01-01T00:00:00Z is over. Give a later one.
key --principal alice --add-to {folder}/list.json
    {folder}/list.json: … Correct that file, or name another with --add-to.
up
    There is no a2c.toml, a2c.json or mcp.json here. `a2c-smcp import` makes one …
import nowhere.json
    There is no file 'nowhere.json'. Name one, or one of …
demo now
    Got unexpected extra argument(s) (now). `a2c-smcp demo --help` shows how it is used.
frobnicate
    No such command 'frobnicate'. `a2c-smcp --help` shows how it is used.
agent room --frobnicate
    No such option: --frobnicate … `a2c-smcp agent room --help` shows how it is used.
server --redis http://store.example
server --redis redis://:hu/sh@store
server --redis redis://127.0.0.1/hu/sh@store
    --redis is not the URL of a Valkey or Redis.
    Write redis://HOST:PORT, rediss://… with TLS, or unix:///PATH; in a password, write %40 for @ and %2F for /.
server --redis rediss://127.0.0.1?ssl_ca_certs=nowhere.pem
    --redis names certificates that cannot be used: No such file or directory.
    They are files in PEM format, which this user may read.
server --redis redis://store.example --node no/rth
    --node: a node's name is made of 1 to 63 letters, digits, '-' and '_', not 'no/rth'. Choose another.
server --node north
    --node and --node-url have no meaning for a single Server. Give --redis or --workers too.
server --redis redis://store.example --host 0.0.0.0 --api-key a-key-of-this-test-0123
    0.0.0.0 is no address at which other nodes could reach this one. NODE_URL
server --redis redis://store.example
server --redis redis://store.example --tls-cert cert.pem --tls-key key.pem
    Nodes on other machines cannot reach this one at 127.0.0.1. NODE_URL
server --redis redis://store.example --node-url north:7000
    --node-url: 'north:7000' is no address. Write http://HOST:PORT or https://HOST:PORT.
server --redis redis://store.example --workers 2
    Nodes on other machines cannot reach the workers of this one one by one.
    Say where they may with --node-url, such as http://10.0.0.5:7100: on ports from there.
server --redis redis://store.example --workers 2 --node-url https://x
    Workers speak no TLS with other nodes. Write http:// in --node-url.
server --workers 9 --node-url http://127.0.0.1:65530
    There are not 9 ports from 65530 on. Give a lower one in --node-url.
""")
"""Command lines that cannot be meant."""


def assert_says(line: str, said: dict[str, str], code: int, places: dict[str, str], folder: Path) -> None:
    """The program ends with this code and these two sentences, and says nothing else."""
    ended = run(SCRIPT, *line.format(**places).split(), folder=folder)
    wanted = said[line]
    for name, sentence in SENTENCES.items():
        wanted = wanted.replace(name, sentence)
    begins, gap, ends = wanted.format(**places, url=line.split()[-1]).partition("…")
    before = r"^no MCP servers: .*\n|^to (?:bind|know) .*:\n  .*\n" if line.startswith("computer") else "^$"
    text = re.sub(before, "", ended.err, flags=re.MULTILINE).removesuffix("\n")
    assert (ended.code, ended.out, "\n" in text) == (code, "", False), ended.err
    assert text.startswith(begins), text
    assert text.endswith(ends) if gap else text == begins, text


@pytest.mark.parametrize("line", FAILED)
def test_failures_say_what_happened_and_what_to_do(line: str, places: dict[str, str], tmp_path: Path) -> None:
    assert_says(line, FAILED, 1, places, tmp_path)


@pytest.mark.covers("program-nodes")
@pytest.mark.parametrize("line", REFUSED)
def test_wrong_command_lines_say_what_is_wrong_and_what_to_do(line: str, places: Any, tmp_path: Path) -> None:
    assert_says(line, REFUSED, 2, places, tmp_path)


def test_the_password_in_a_wrong_url_of_a_store_is_not_shown(tmp_path: Path) -> None:
    for url in ("redis://:hu/sh@store", "redis://127.0.0.1/hu/sh@store"):
        assert "hu/sh" not in run(SCRIPT, "server", "--redis", url, folder=tmp_path).err


# While it goes on: a computer whose Server or MCP servers are not there waits for them

WAITING = {
    "missing": {"command": "no-such-command"},
    "needs": {"command": "x", "args": ["${input:token}"]},
    "undefined": {"command": "x", "args": ["${input:nobody}"]},
}
LINES = {
    "missing: failed (Command not found: 'no-such-command' is not on PATH. "
    "Install it, or write its whole path in the configuration.)",
    "  token: it has no value (A token); give it explicitly, in the environment as A2C_INPUT_TOK",
    "server 'undefined' uses 'nobody': define it under `inputs`, or correct the placeholder",
    f"cannot be reached, nothing listens there; trying again. {START}",
}


TRUST_REMOTE = (
    "This machine does not trust the certificate of that MCP server, or of one that it calls: put the file of its CA "
    "into SSL_CERT_FILE, or NODE_EXTRA_CA_CERTS for Node, and start this program again.)"
)


@cases(
    "line, wanted",
    ("computer --config servers.json --url http://127.0.0.1:9", LINES),
    ("computer --url {tls}", {f"trying again. {TRUST}"}),
    ("computer --config remote.json --url http://127.0.0.1:9", {TRUST_REMOTE}),
    ids=["servers and Server missing", "certificate not trusted", "certificate of an MCP server not trusted"],
)
async def test_a_computer_says_what_it_waits_for_and_what_to_do(
    line: str, wanted: set[str], places: dict[str, str], place: Place
) -> None:
    place.write(WAITING, "servers.json", inputs=[{"id": "token", "type": "promptString", "description": "A token"}])
    place.write({"remote": {"url": places["tls"]}}, "remote.json")
    program = await place.start(*line.format(**places).split())
    for words in wanted:
        await program.says(words)
    await program.stops()
    assert "Traceback" not in program.said


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
    assert "a2c_smcp.connection.Unreachable: " in debugged.err
    assert debugged.err.splitlines()[-1:] == plain.err.splitlines()


def test_without_its_extra_the_program_says_how_to_get_it(tmp_path: Path) -> None:
    program = "import sys; sys.modules['typer'] = None; from a2c_smcp.cli import main; main()"
    ended = run(sys.executable, "-c", program, "--help", folder=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(
        r"typer is not installed\. Install a2c-smcp with its extras: .*pip install .+\[all\]'\n", ended.err
    )


def test_a_closed_stdout_ends_the_program_quietly(places: dict[str, str], tmp_path: Path) -> None:
    line = f"{folder_of_program()}/a2c-smcp agent room --url {places['hub']} --office nobody-{os.getpid()} | true"
    assert run("bash", "-c", f"set -o pipefail; {line}", folder=tmp_path).err == ""


def test_version_is_printed_without_importing_the_rest(tmp_path: Path) -> None:
    libraries = "for name in ('typer', 'rich', 'pydantic', 'aiohttp', 'socketio'): sys.modules[name] = None"
    program = f"import sys\n{libraries}\nfrom a2c_smcp.cli import main; main()"
    ended = run(sys.executable, "-c", program, "--version", folder=tmp_path)
    assert ended == Ended(0, f"a2c-smcp {__version__}\n", "")


@cases("text", "it is so", "it is so.", "it is so. ", "it is so:.", "it is so..", "it is so,\n")
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


def test_an_mcp_client_is_not_told_an_option_of_a_program_that_it_did_not_start() -> None:
    said = explain_with("http://localhost:1", "desk", None)(SMCPError("it broke"))
    assert "it broke" in said
    assert "--log-level" not in said
    assert said.endswith("Try again, or ask the owner of that computer, whose log tells more.")
