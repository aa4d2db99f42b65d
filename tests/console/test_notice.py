"""`--notify`: notices on the desktop, by a program on the PATH that writes down what it is given."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.consent.approval import ApprovalRequest, Caller, PendingApprovals, PendingQuestions
from a2c_smcp.console.notice import DesktopNotices, Shower, shower
from a2c_smcp.errors import CallTimeout
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol.questions import Question
from tests.executables import executable
from tests.stage.place import PATIENCE, Place, good
from tests.waiting import until

EVIL = "-x \"'<b>&$(touch pwned)`touch pwned`;\x1b[2J\u202e\n\0\ud800 %s"
REQUEST = ApprovalRequest(Caller("desk", "planner"), "write", "files", "write", {"secret": "argument"})
RECORDER = """
import json, os, sys, time
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
while os.path.exists(os.environ["RECORD"] + ".hold"):
    time.sleep(0.01)
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs that show notices write down what they are given. Both of freedesktop are on the PATH."""
    folder, file = tmp_path / "bin", tmp_path / "record"
    folder.mkdir()
    for name in ("notify-send", "gdbus"):
        executable(folder / name, RECORDER)
    file.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(file))
    return file


def shown(record: Path) -> list[list[str]]:
    return [json.loads(line) for line in record.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


class Owner:
    """What waits for an owner, whose page is open while `is_watched`."""

    def __init__(self, found: Shower, pause: float) -> None:
        self.approvals = PendingApprovals()
        self.questions = PendingQuestions(self.approvals.numbers, self.approvals.first_added)
        self.is_watched, self.looks = False, 0
        self.notices = DesktopNotices(found, "lap\ntop", self.look, pause)
        self.notices.follow(self.approvals, self.questions)
        self.asking: list[asyncio.Future[object]] = []

    def look(self) -> bool:
        self.looks += 1
        return self.is_watched

    async def asks(self, request: ApprovalRequest | Question) -> asyncio.Future[object]:
        pending = self.approvals if isinstance(request, ApprovalRequest) else self.questions
        before = len([*pending])
        self.asking.append(asyncio.ensure_future(pending(request)))  # type: ignore[arg-type]
        await until(lambda: len([*pending]) > before)
        return self.asking[-1]


Owns = Callable[[float], Owner]


@pytest.fixture
async def owns(record: Path) -> AsyncIterator[Owns]:
    owners = []

    def own(pause: float) -> Owner:
        found = shower()
        assert found
        owners.append(Owner(found, pause))
        return owners[-1]

    yield own
    for owner in owners:
        await owner.notices.close()
        await cancel_and_wait(*owner.asking)


async def test_a_notice_says_who_wants_what_and_nothing_of_the_arguments(owns: Owns, record: Path) -> None:
    owner = owns(0.0)
    await owner.asks(REQUEST)
    await until(lambda: shown(record))
    await owner.asks(Question("Which one?", server="files", tool="write", agent="planner", office="desk"))
    await until(lambda: len(shown(record)) == 2)
    title = "a2c-smcp: lap\\ntop"
    assert shown(record) == [
        ["--app-name=a2c-smcp", "--", title, "planner wants to run write of files"],
        ["--app-name=a2c-smcp", "--", title, "files, while write runs for planner in desk, asks a question"],
    ]


async def test_what_agents_have_chosen_is_text_whatever_is_in_it(
    owns: Owns, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = replace(REQUEST, caller=Caller("desk", EVIL), name=EVIL * 50)
    await owns(0.0).asks(evil)
    await until(lambda: shown(record))
    (record.parent / "bin" / "notify-send").unlink()
    found = shower()
    if found and found("", "")[0] == "gdbus":  # there is no other notify-send on this machine
        await owns(0.0).asks(evil)
        await until(lambda: len(shown(record)) == 2)
        assert json.loads(shown(record)[1][-4]).startswith("-x &quot;")
    text = shown(record)[0][-1]
    assert text.startswith(
        r"-x &quot;&#x27;&lt;b&gt;&amp;$(touch pwned)`touch pwned`;\\u001b[2J\\u202e\\n\\u0000\\ud800 %s"
    )  # notify-send reads them as those of C
    assert len(text) < 400
    assert not (tmp_path / "pwned").exists()


async def test_many_requests_are_one_notice_and_none_while_a_page_is_open(owns: Owns, record: Path) -> None:
    owner, hold = owns(0.0), record.with_suffix(".hold")
    owner.is_watched = True
    await owner.asks(REQUEST)
    await until(lambda: owner.looks == 1)
    owner.is_watched = False
    hold.touch()
    await owner.asks(replace(REQUEST, name="first"))
    await until(lambda: shown(record))
    for number in range(20):
        await owner.asks(replace(REQUEST, name=f"more-{number}"))
    withdrawn = await owner.asks(replace(REQUEST, name="withdrawn"))
    await cancel_and_wait(withdrawn)
    hold.unlink()
    await until(lambda: len(shown(record)) == 2)
    assert [line[-1] for line in shown(record)] == [
        "planner wants to run first of files",
        "planner wants to run more-0 of files (and 19 more)",
    ]


async def test_after_a_notice_there_is_a_pause(owns: Owns, record: Path) -> None:
    owner = owns(3600)
    await owner.asks(REQUEST)
    await until(lambda: shown(record))
    await owner.asks(REQUEST)
    await owner.notices.close()
    assert (len(shown(record)), owner.looks) == (1, 1)


@pytest.mark.parametrize("program", ["/bin/false", "/absent/notify-send"])
async def test_a_program_that_fails_is_logged_and_holds_up_nothing(
    program: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(lambda title, text: [program, title, text], 0.0)
    call = await owner.asks(REQUEST)
    await until(lambda: "the desktop shows no notice" in caplog.text)
    owner.approvals.answer(next(iter(owner.approvals)), "no")
    assert await call == "no"
    await owner.notices.close()


@asynccontextmanager
async def noticing(place: Place, *options: str, **environ: str) -> AsyncIterator[tuple[str, str]]:
    """A Server, and a computer with `--notify`: the address of the Server, and the link to the console."""
    server = await place.start("server", "--port", "0")
    url = await server.listens()
    config = place.write({"asking": good(default_tool_meta=None)})
    words = (
        "computer",
        "--name",
        "laptop",
        "--url",
        url,
        "--config",
        str(config),
        "--console",
        "--notify",
        "--no-input",
    )
    program = await place.start(*words, *options, **environ)
    link = (await program.says("console, opens once")).split()[-1]
    await program.says("ready")
    yield url, link


async def test_the_program_shows_a_notice_unless_a_page_is_open(place: Place, record: Path) -> None:
    environ = {name: os.environ[name] for name in ("PATH", "RECORD")}
    async with asyncio.timeout(3 * PATIENCE), AsyncExitStack() as stack:
        url, link = await stack.enter_async_context(noticing(place, **environ))
        agent = await stack.enter_async_context(AsyncSMCPAgentClient("planner", url=url, office="desk"))
        browser = await stack.enter_async_context(aiohttp.ClientSession())
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, timeout=60))
        await until(lambda: shown(record))
        calling.cancel()
        address = urlsplit(link)
        console = f"http://127.0.0.1:{address.port}"
        browser.headers["Origin"] = console
        async with browser.post(f"{console}/open", data={"link": parse_qs(address.query)["link"]}) as opened:
            browser.headers["X-A2C-Session"] = (await opened.json())["secret"]
        async with browser.get(f"{console}/live", params={"page": "/"}) as live:
            await live.content.readline()
            with pytest.raises(CallTimeout):
                await agent.emit_tool_call("laptop", "add", {"a": 3, "b": 4}, timeout=2)
    assert [line[-2:] for line in shown(record)] == [["a2c-smcp: laptop", "planner wants to run add of asking"]]


async def test_a_machine_without_such_a_program_says_so_once_at_the_start(place: Place, tmp_path: Path) -> None:
    only = tmp_path / "only"
    only.mkdir()
    async with asyncio.timeout(PATIENCE):
        server = await place.start("server", "--port", "0")
        config = place.write({"asking": good(default_tool_meta=None)})
        words = ("computer", "--url", await server.listens(), "--config", str(config), "--console", "--notify")
        program = await place.start(*words, PATH=str(only))
        await program.says("--notify: this machine has no program that shows notices")
        await program.says("ready")
        assert program.said.count("--notify: this machine") == 1
