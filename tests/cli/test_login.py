"""`a2c-smcp login` and `logout`, with a provider and an MCP server behind it: by browser, and by a pasted address."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.cli.sign_in import read_redirect
from tests.computer.pseudo_terminal import on_a_terminal
from tests.executables import executable
from tests.program import start_program
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.guarded_server import GuardedServer
from tests.stage.browsing import redirect_of
from tests.stage.cases import cases
from tests.stage.place import PROGRAM, Place, good
from tests.stage.prompt import CTRL_C, ENTER, Dialogue

pytestmark = pytest.mark.covers("login")

BROWSER = """
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1], timeout=60).read()
"""


def hidden(provider: AuthorizationServer) -> set[str]:
    """Texts that must not be shown. The state of a sign-in is in the address of its page, which is shown."""
    return provider.secrets() - {fields["state"] for fields in provider.seen("authorize")}


def at(hub: Any, office: str) -> list[str]:
    return ["--url", hub.url, "--office", office, "--name", "laptop"]


class Desk(Place):
    """The folder of a user who has the guarded server in a file."""

    def __init__(self, folder: Path, guarded: GuardedServer) -> None:
        super().__init__(folder)
        for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"):
            self.environ.pop(name, None)
        auth = {"issuer": guarded.provider.issuer}
        files = {"url": guarded.mcp_url, "auth": auth, "default_tool_meta": {"auto_apply": True}}
        self.write({"files": files, "local": good()})
        self.browser = executable(folder / "browser", BROWSER)

    @asynccontextmanager
    async def terminal(self, *words: str, **environ: str) -> AsyncIterator[Dialogue]:
        env = {**self.environ, "TERM": "xterm-256color", **environ}
        words = (*words, "--config", str(self.folder / "mcp.json"))
        async with on_a_terminal(str(PROGRAM), *words, env=env, lines=50, columns=1000) as program:
            yield Dialogue(program)


@pytest.fixture
async def desk(tmp_path: Path, guarded: GuardedServer) -> AsyncIterator[Desk]:
    place = Desk(tmp_path, guarded)
    yield place
    await place.end()


async def test_the_browser_opens_and_comes_back_and_the_next_login_says_so(
    desk: Desk, provider: AuthorizationServer
) -> None:
    done = await desk.run("login", "files", BROWSER=f"{desk.browser} %s")
    assert (done.code, done.out) == (0, "Signed in to files.\n"), done.err
    assert "signing in to files\nOpening this page of 127.0.0.1:" in done.err
    kept = [path for path in desk.state.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert any(token in path.read_text() for path in kept for token in provider.access)
    again = await desk.run("login", "files", BROWSER="false")
    assert (again.code, again.out) == (0, "Signed in to files already; --again signs in anew.\n")
    anew = await desk.run("login", "files", "--again", "--json", BROWSER=str(desk.browser))
    assert json.loads(anew.out) == {"server": "files", "signed_in": True, "is_new": True}
    assert len(provider.seen("authorize")) == 2
    for said in (done, again, anew):
        assert not [each for each in hidden(provider) if each in said.out + said.err]


async def test_logout_revokes_and_forgets(desk: Desk, provider: AuthorizationServer) -> None:
    assert (await desk.run("login", "files", BROWSER=str(desk.browser))).code == 0
    done = await desk.run("logout", "files")
    assert (done.code, done.out) == (0, "Signed out of files: its tokens are revoked, and forgotten here.\n")
    assert provider.seen("revoke")
    kept = "".join(path.read_text() for path in desk.state.rglob("*") if path.is_file())
    assert not [each for each in hidden(provider) if each in kept]
    again = await desk.run("logout", "files", "--json")
    expected = {"server": "files", "signed_in": False, "was_signed_in": False, "revoked": False}
    assert (again.code, json.loads(again.out)) == (0, expected)


@cases(
    "words, code, said",
    (["login", "fils"], 2, "There is no MCP server 'fils' in mcp.json. Did you mean files?"),
    (["logout", "zzz"], 2, "There is no MCP server 'zzz' in mcp.json. There are files, local."),
    (["login", "local"], 2, "local is a program on this machine, and takes no sign-in here. If it needs"),
    (["login", "files", "--config", "no.json"], 2, "no.json"),
    (["login", "files"], 1, "it was given up here. Nothing was changed."),
    (["login"], 2, "Missing argument 'SERVER'"),
)
async def test_what_is_wrong_is_said_with_what_to_do(desk: Desk, words: list[str], code: int, said: str) -> None:
    (await desk.run(*words)).refused(code, said)


async def test_a_folder_without_a_file_and_a_server_that_is_not_there(desk: Desk) -> None:
    desk.write({"gone": {"url": "http://127.0.0.1:9/mcp"}})
    (await desk.run("login", "gone")).refused(1, "Correct its configuration, or start that server; then try again.")
    (desk.folder / "mcp.json").unlink()
    done = await desk.run("login", "files")
    done.refused(2, "There is no a2c.toml, a2c.json or mcp.json here. --config names a file of MCP servers.")


async def test_a_server_that_wants_no_sign_in_is_said_to_work_without(desk: Desk, guarded: GuardedServer) -> None:
    guarded.is_open = True
    done = await desk.run("login", "files")
    assert (done.code, done.out) == (0, "files works without a sign-in.\n")


async def test_a_person_who_refuses_in_the_browser(desk: Desk, provider: AuthorizationServer) -> None:
    provider.person = "refuses"
    done = await desk.run("login", "files", BROWSER=str(desk.browser))
    done.refused(1, "it was refused in the browser", "Sign in again, and allow it there.")


async def test_without_a_browser_the_page_is_printed_and_its_end_is_pasted(
    desk: Desk, provider: AuthorizationServer
) -> None:
    async with desk.terminal("login", "files", "--no-browser", BROWSER=str(desk.browser)) as program:
        await program.shows("Open this page of 127.0.0.1:")
        await program.shows("At the end the browser goes to an address that begins with http://127.0.0.1:")
        page = re.search(r"^http://\S+/authorize\S+", program.screen.text, re.M)
        assert page
        pasted = {
            "": "paste the address of the page that the browser ends at",
            page[0]: "that is the page to sign in on; needed is the address it sends you to",
            "http://127.0.0.1/callback": "there is no code in that; needed is the whole address",
            "http://127.0.0.1/callback?code=1&state=2": "that address belongs to another sign-in",
            await asyncio.to_thread(redirect_of, page[0]): "Signed in to files.",
        }
        for address, said in pasted.items():
            await program.answers("Address:", address, said)
        assert await program.exit_code() == 0
        codes = {fields["code"] for fields in provider.seen("token")}
        assert not [code for code in codes if code in program.screen.raw]


async def test_the_address_can_be_given_on_stdin_by_a_program(desk: Desk) -> None:
    process = await start_program("login", "files", cwd=desk.folder, env=desk.environ, stdin=PIPE)
    assert process.stdin
    assert process.stderr
    try:
        async with asyncio.timeout(60):
            while b"/authorize" not in (line := await process.stderr.readline()):
                assert line
            redirect = await asyncio.to_thread(redirect_of, line.decode().strip())
            out, _ = await process.communicate(redirect.encode() + b"\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert out == b"Signed in to files.\n"


async def test_ctrl_c_stops_a_login_that_waits_for_the_browser(desk: Desk, provider: AuthorizationServer) -> None:
    provider.person = "leaves"
    async with desk.terminal("login", "files", BROWSER=str(desk.browser)) as program:
        await program.shows("This goes on by itself when you have signed in.")
        await program.asks("Address:")
        program.types(CTRL_C)
        assert await program.exit_code() == 1
        assert "it was given up here. Nothing was changed." in program.screen.text
        assert program.echoes


@pytest.mark.covers("prompt")
async def test_a_running_computer_says_what_to_type_and_notices_a_login_beside_it(
    desk: Desk, shared_hub: Any, office: str
) -> None:
    async with desk.terminal("computer", *at(shared_hub, office)) as program:
        await program.shows("MCP server asks for authentication: to sign in, type: login files")
        assert "Give it a credential" not in program.screen.text
        assert (await desk.run("login", "files", BROWSER=str(desk.browser))).code == 0
        await program.shows("files: ready")
        program.types("login files" + ENTER)
        await program.shows("files is signed in to already; login files --again signs in anew")
        program.types("logout files" + ENTER)
        await program.shows("signed out of files: its tokens are revoked and forgotten")
        await program.shows("files: auth_required")
        program.types("login files" + ENTER)
        await program.asks("Address:")
        page = re.findall(r"^http://\S+/authorize\S+", program.screen.text, re.M)[-1]
        program.types(await asyncio.to_thread(redirect_of, page) + ENTER)
        await program.shows("signed in to files\n")
        await program.shows(lambda screen: screen.text.count("files: ready") == 2)


@pytest.mark.covers("9-sign-in-asked")
async def test_a_computer_on_a_terminal_opens_the_browser_when_its_owner_says_so(
    desk: Desk, provider: AuthorizationServer, shared_hub: Any, office: str
) -> None:
    async with desk.terminal("computer", *at(shared_hub, office), BROWSER=str(desk.browser)) as program:
        await program.shows("MCP server asks for authentication: to sign in, type: login files")
        assert provider.requests == []
        assert "Opening this page" not in program.screen.text
        program.types("login files" + ENTER)
        await program.shows("Opening this page of 127.0.0.1:")
        await program.shows("signed in to files")
        await program.shows("files: ready")
        provider.revoke_all()
        program.types("mcp restart files" + ENTER)
        await program.shows("files: auth_required")
        program.types("login files" + ENTER)
        await program.shows(lambda screen: screen.text.count("signed in to files") == 2)
        await program.shows(re.compile("files:? +ready"))
        assert not [each for each in hidden(provider) if each in program.screen.raw]


@pytest.mark.covers("doctor")
async def test_doctor_says_who_is_signed_in(desk: Desk, guarded: GuardedServer) -> None:
    desk.write({"files": {"url": guarded.mcp_url, "auth": {"issuer": guarded.provider.issuer}}})
    assert "Nobody is signed in to files. a2c-smcp login files" in (await desk.run("doctor", "--port", "0")).out
    assert (await desk.run("login", "files", BROWSER=str(desk.browser))).code == 0
    assert "Signed in to files." in (await desk.run("doctor", "--port", "0")).out


async def test_an_agent_reads_who_has_to_sign_in(desk: Desk, shared_hub: Any, office: str) -> None:
    assert (await desk.run("login", "files", BROWSER=str(desk.browser))).code == 0
    where = ["--url", shared_hub.url, "--office", office]
    computer = await desk.start("computer", "--config", "mcp.json", "--name", "laptop", *where)
    await computer.says("files: ready")
    done = await desk.run("agent", "call", "laptop", "write", "text=x", *where)
    said = "laptop is signed in to files, but that has expired, or lacks the permission for this."
    done.refused(1, said, "with `a2c-smcp login files --again`. Then call again.")
    assert (await desk.run("logout", "files")).code == 0
    await computer.says("files: auth_required")
    done = await desk.run("agent", "call", "laptop", "add", "a=1", "b=2", *where)
    done.refused(1, "Nobody is signed in to files on laptop. Its owner signs in there, with `a2c-smcp login files`")


@cases(
    "pasted, is_right",
    ("http://127.0.0.1:1/callback?code=x&state=s", True),
    ("  <http://127.0.0.1:1/callback?error=access_denied&state=s> ", True),
    ("http://127.0.0.1:1/callback?code=x", False),
    ("http://[bad?code=x&state=s", False),
    ("code=x&state=s", False),
)
def test_only_the_end_of_this_sign_in_is_taken(pasted: str, is_right: bool) -> None:
    page = "https://auth.example/authorize?state=s&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback"
    if is_right:
        assert read_redirect(page, pasted).startswith("http://127.0.0.1:1/callback?")
    else:
        with pytest.raises(ValueError, match=r"."):
            read_redirect(page, pasted)
