"""An afternoon in an office: agents and computers do nearly all that they can, and ask for what they may not."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from socketio.exceptions import ConnectionError as NotConnected

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.consent.freeze import FreezeFile, FreezeState
from a2c_smcp.errors import CallCancelled
from tests.computer.supervised import command_of
from tests.golden.shapes import Shapes
from tests.golden.tap import Tap
from tests.peer import Peer
from tests.stage.place import Place, good
from tests.stage.program import Program
from tests.waiting import until, until_it_goes

__all__ = ["observed"]

KEY, BOUND = "k" * 32, "b" * 32
SKILL = "---\nname: review\ndescription: Reviews code.\nlicense: MIT\n---\nRead it."
ODD: dict[str, list[tuple[str, dict[str, Any]]]] = json.loads(Path(__file__).with_name("odd_requests.json").read_text())
"""Requests of raw clients, most of which are refused."""


async def observed(folder: Path) -> dict[str, str]:
    """What was seen of it: the text of each golden file."""
    place = Place(folder)
    try:
        async with Tap() as tap:
            await write_keys(place)
            about = ("--keys-file", "keys.json", "--origin", tap.url, "--metrics")
            server = await start(place, "server", "server", "--port", "0", *about)
            tap.server = await server.listens()
            laptop = await computer(place, tap.url, "laptop", KEY, all_servers(place, tap.url), *all_options(place))
            desktop = await computer(place, tap.url, "desktop", BOUND, {"good": good()}, "--sign")
            for name in ("good", "library", "older", "newer", "contents"):
                await laptop.says(f"{name}: ready")
            await laptop.says("closed: auth_required")
            await desktop.says("good: ready")
            await planner_works(place, tap)
            await programs_ask(place, tap)
            await raw_clients_err(place, tap)
            await sealed_agent_works(place, tap)
            await owner_freezes(place, tap)
            async with aiohttp.ClientSession() as http:
                pages = [f"{tap.server}/metrics", (await laptop.says("metrics at ")).removeprefix("metrics at ")]
                texts = [await (await http.get(page)).text() for page in pages]
                for path in ("/healthz", *(f"/socket.io/?{query}" for query in ("a2c_version=9", "a2c_version=x"))):
                    answer = await http.get(tap.server + path)
                    tap.shapes.add(f"HTTP {answer.status}", await answer.json(), "to client")
            for program in (laptop, desktop, server):
                program.signal(signal.SIGTERM)
                assert await program.ends() == 0, program.said
    finally:
        await place.end()
    audit, spans = audited(folder), traced(folder)
    return {"wire.txt": str(tap.shapes), "audit.txt": audit, "spans.txt": spans, "metrics.txt": samples(texts)}


# The programs


async def write_keys(place: Place) -> None:
    """A key for all, and one that is bound to the device of a computer here."""
    devices = json.loads((await place.run("device", "show", "--json")).out)["devices"]
    bound = {
        "principal": "desktop",
        "device": next(each["fingerprint"] for each in devices if each["role"] == "computer"),
    }
    entries = {KEY: {"principal": "all", "offices": ["desk"]}, BOUND: bound}
    keys = {f"sha256:{sha256(key.encode()).hexdigest()}": entry for key, entry in entries.items()}
    (place.folder / "keys.json").write_text(json.dumps(keys))


async def start(place: Place, name: str, command: str, *words: str) -> Program:
    audit, spans = (str(place.folder / f"{name}.{kind}") for kind in ("audit", "spans"))
    return await place.start(command, *words, "--audit", audit, A2C_TRACE_FILE=spans)


async def computer(place: Place, url: str, name: str, key: str, servers: dict[str, Any], *words: str) -> Program:
    config = str(place.write(servers, f"{name}.json"))
    about = ("--name", name, "--url", url, "--api-key", key, "--config", config, "--no-browser")
    program = await start(place, name, "computer", *about, *words)
    await program.says("joined ")
    return program


def all_servers(place: Place, url: str) -> dict[str, Any]:
    def server(file: str, *args: object, **more: Any) -> dict[str, Any]:
        command, *words = command_of(file, *args)
        return {"command": command, "args": words, "default_tool_meta": {"auto_apply": True}, **more}

    return {
        "good": good(forbidden_tools=["environment"], tool_meta={"big": {"alias": "huge", "tags": ["x"]}}),
        "library": server("library.py", "newer", place.folder / "notes", "talkative"),
        "older": server("older_asking.py", place.folder / "older notes", tool_meta={"meta": {"auto_apply": False}}),
        "newer": server("asking.py", place.folder / "newer notes"),
        "contents": server("contents.py"),
        "closed": {"type": "streamable", "url": f"{url}/closed"},
        "off": {"command": "no-such-program", "disabled": True},
    }


def all_options(place: Place) -> list[str]:
    policy, landing, skills = (place.folder / name for name in ("policy.json", "landing", "skills"))
    policy.write_text(json.dumps({"rules": [{"tools": ["fail"], "then": "deny", "why": "it fails"}]}))
    landing.mkdir(mode=0o700)
    (skills / "user" / "review").mkdir(mode=0o700, parents=True)
    (skills / "user" / "review" / "SKILL.md").write_text(SKILL)
    (skills / "user" / "review" / "large.md").write_text("x" * 50_000)
    files = ("--policy", str(policy), "--landing", str(landing), "--skill-home", str(skills))
    return [*files, "--approve-by", "client", "--e2e", "prefer", "--metrics-port", "0"]


# What happens


def seat(tap: Tap, name: str, **options: Any) -> AsyncSMCPAgentClient:
    return AsyncSMCPAgentClient(name, url=tap.url, office="desk", api_key=KEY, **options)


class Notices:
    """What our agent hears from the laptop."""

    def __init__(self) -> None:
        self.heard: set[str] = set()

    def on_notice(self, event: str, data: dict[str, Any]) -> None:
        if data.get("computer") == "laptop":
            self.heard.add(event.removeprefix("notify:update_"))


async def planner_works(place: Place, tap: Tap) -> None:
    """Our own agent does what it can."""
    notices = Notices()
    async with seat(tap, "planner", on_question=answered, event_handler=notices) as agent:

        def call(tool: str, params: dict[str, Any] | None = None, **options: Any) -> Any:
            return agent.emit_tool_call("laptop", tool, params, timeout=30, **options)

        library = ("laptop", "library")
        notes = "file:///notes.txt"
        await agent.list_room()
        for ask in (agent.get_tools, agent.get_config, agent.get_servers, agent.get_skills, agent.get_questions):
            await ask("laptop")
        for ask_server in (agent.get_resources, agent.get_resource_templates, agent.get_prompts):
            await ask_server(*library)
        await agent.get_desktop("laptop", size=1)
        await agent.get_desktop("laptop", window="window://good/two")
        # Calls
        assert (await call("add", {"a": 1, "b": 2}, meta={"own": 1}, client={"name": "an MCP client"})).text == "3"
        assert (await agent.emit_tool_call("desktop", "add", {"a": 1, "b": 2})).text == "3"
        assert (await agent.emit_tool_call("desktop", "fail")).is_error
        await call("give", {"items": [["image", 70_000], ["text", 70_000], ["blob", 10]], "structured": 100})
        assert not (await call("meta")).is_error  # needs approval
        await call("book")
        first = await call("newer__book", questions="result", client_capabilities={"elicitation": {"form": {}}})
        responses = {name: {"action": "accept", "content": {"city": "BER"}} for name in first.input_requests}
        await call("newer__book", questions="result", input_responses=responses, request_state=first.request_state)
        # Tells and notices
        await agent.set_log_level("laptop", "debug")
        await agent.subscribe_resource(*library, notes)
        await call("chat", on_progress=ignored, extend=True)
        await call("touch", {"uri": notes})
        await call("rename", {"what": "prompts"})
        await call("rename", {"what": "resources"})
        await call("grow", {"name": "grown"})
        await call("open_window", {"uri": "window://good/three", "text": "x", "priority": 0.5})
        (place.folder / "skills" / "user" / "review" / "new.md").write_text("new")
        await agent.unsubscribe_resource(*library, notes)
        await agent.set_log_level("laptop", None)
        await until(lambda: notices.heard >= {"desktop", "prompts", "resource_list", "skills", "tool_list"})
        # Reading and sending
        for uri in (notes, "text:300000", "blob:300000"):
            await agent.read_resource(*library, uri)
        asked = await agent.read_resource(*library, "ask:x", questions="result")
        more = {"q": {"action": "decline"}}, asked["requestState"]
        await agent.read_resource(*library, "ask:x", questions="result", input_responses=more[0], request_state=more[1])
        await agent.get_prompt(*library, "greet", {"who": "you"})
        await agent.complete(*library, {"type": "ref/prompt", "name": "greet"}, {"name": "who", "value": "m"})
        await agent.get_skill("laptop", "review", "large.md")
        await agent.put_bytes("laptop", b"x" * 300_000, "notes.txt")
        # Lost connections, and a cancel
        for role in ("agent", "computer"):
            running = asyncio.Event()
            slow = asyncio.create_task(call("slow", {"steps": 8}, on_progress=partial(begun, running)))
            await running.wait()
            tap.cut(role)
            assert (await slow).text == "done"
        asking = asyncio.create_task(call("book", on_question=lambda _: asyncio.sleep(60), req_id="cancelled"))
        await until_it_goes(partial(has_question, agent))
        await agent.cancel("cancelled")
        with suppress(CallCancelled):
            await asking


def answered(question: Any) -> dict[str, Any]:
    """A yes to a question for approval, and what fits the others."""
    known = {"city": "BER", "mail": "me@example.org", "count": 2, "extras": []}
    fields: dict[str, Any] = question.schema["properties"]
    return {name: known[name] if name in known else field["enum"][-1] for name, field in fields.items()}


def begun(running: asyncio.Event, *_: object) -> None:
    running.set()


def ignored(*_: object) -> None:
    pass


async def has_question(agent: AsyncSMCPAgentClient) -> None:
    assert await agent.get_questions("laptop")


async def programs_ask(place: Place, tap: Tap) -> None:
    """Whose spans are in a file."""
    about = ("--url", tap.url, "--api-key", KEY, "--office", "desk")
    for words in (("tools", "laptop"), ("call", "laptop", "add", "a=1", "b=2"), ("call", "desktop", "fail")):
        await place.run("agent", *words, *about, A2C_TRACE_FILE=str(place.folder / "agent.spans"))


async def raw_clients_err(place: Place, tap: Tap) -> None:
    """Clients that speak as others do ask for what they may not."""
    raw, old, other = [await peer(tap) for _ in range(3)]
    for client, role, name, office in (
        *((raw, "agent", "raw", office) for office in ("", "elsewhere", "desk")),
        *((raw, role, name, "desk") for role, name in (("agent", "raw"), ("computer", "raw"))),
        *((other, role, name, "desk") for role, name in (("agent", "other"), ("computer", "laptop"))),
        *((old, "computer", name, "desk") for name in ("older", "old")),  # is renamed
    ):
        await client.ask("server:join_office", {"role": role, "name": name, "office_id": office})
    raw.name = "raw"
    old.answers("client:get_config", {"servers": {}, "req_id": "x"})
    with suppress(NotConnected):
        await peer(tap, "no key")
    late = asyncio.gather(
        raw.call_tool("old", timeout=1),  # nobody answers
        raw.call_tool("laptop", "meta", timeout=1, questions=True),
        raw.call_tool("laptop", "slow", timeout=9, params={"steps": 500}, progress=True, req_id="slow"),
    )
    for event, fields in ODD["agent"]:
        await raw.ask(event, {"agent": "raw", "req_id": uuid4().hex, "computer": "laptop", **fields})
    for event, fields in ODD["computer"]:
        await old.ask(event, {"agent": "raw", "req_id": "x", "computer": "old", **fields})
    skill = await raw.request("client:get_skill", "laptop", name="review", rel_path="large.md")
    await raw.request("client:get_blob", "laptop", blob_handle=skill["blob_handle"], chunk_offset=1 << 40)
    (place.folder / "skills" / "user" / "review" / "large.md").unlink()
    await raw.request("client:get_blob", "laptop", blob_handle=skill["blob_handle"])
    await raw.ask("server:tool_call_cancel", {"agent": "raw", "req_id": "slow"})
    await late
    left = asyncio.create_task(raw.call_tool("old", timeout=30))
    await old.was_asked("client:tool_call", 2)
    await old.drop()
    await left
    for client in (other, raw):
        await client.close()


async def sealed_agent_works(place: Place, tap: Tap) -> None:
    """An agent seals what it says; then another one takes its name, and does not."""
    async with seat(tap, "sealer", e2e="prefer", state_folder=place.folder / "sealer") as agent:
        await agent.get_tools("laptop")
        await agent.emit_tool_call("laptop", "slow", {"steps": 2}, timeout=30, on_progress=ignored)
    thief = await peer(tap)
    await thief.join("agent", "sealer", "desk")
    await thief.request("client:get_tools", "laptop")
    await thief.call_tool("laptop")
    await thief.ask("server:leave_office", {"office_id": "desk"})  # before members are counted
    await thief.close()


async def owner_freezes(place: Place, tap: Tap) -> None:
    """The owner of the laptop stops everything while a call runs."""
    agent, file = await peer(tap), FreezeFile(place.state / "a2c-smcp", "laptop")
    await agent.join("agent", "late", "desk")
    slow = asyncio.create_task(agent.call_tool("laptop", "slow", timeout=60, params={"steps": 500}, progress=True))
    await agent.hears("notify:tell_progress")
    file.write(FreezeState(True, "lunch", "command"))
    await agent.hears("notify:update_state", frozen=True)
    await slow
    await agent.call_tool("laptop")
    await agent.request("client:get_tools", "laptop")
    file.write(FreezeState(where="command"))
    await agent.hears("notify:update_state", frozen=False)
    await agent.ask("server:leave_office", {"office_id": "desk"})
    await agent.close()


def peer(tap: Tap, key: str = KEY) -> Any:
    return Peer.connect(tap.url, transports=["websocket"], auth={"token": key})


# What was seen


def audited(folder: Path) -> str:
    """The fields of each kind of entry, by outcome."""
    found = defaultdict(list)
    for who, entry in lines_of(folder, "audit"):
        entry.pop("hash", None)  # only at the end of a block
        found[" ".join(filter(None, (entry.pop("event"), entry.get("outcome")))), who].append(entry)
    return together(found)


def traced(folder: Path) -> str:
    """The attributes of each of our spans, but for waits, which may not be."""
    found = defaultdict(list)
    for who, line in lines_of(folder, "spans"):
        scopes = [scope for scope in line["resourceSpans"][0]["scopeSpans"] if scope["scope"]["name"] == "a2c_smcp"]
        for span in (span for scope in scopes for span in scope["spans"] if span["name"] != "a2c.queue"):
            attributes = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
            name = re.sub(rf" {re.escape(attributes.get('gen_ai.tool.name', ''))}$", " TOOL", span["name"])
            found[f"{name} [{('internal', 'server', 'client')[span['kind'] - 1]}]", who].append(attributes)
    return together(found)


def lines_of(folder: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in the files of this kind, each with the role of the program that has written it."""
    for file in folder.glob(f"*.{kind}"):
        who = {"server": "Server", "agent": "agent"}.get(file.stem, "computer")
        yield from ((who, json.loads(line)) for line in file.read_text("utf-8").splitlines())


def together(found: dict[tuple[str, str], list[Any]]) -> str:
    """All messages of one topic as one."""
    shapes = Shapes()
    for (topic, place), messages in found.items():
        shapes.add(topic, messages, place)
    return str(shapes)


def samples(texts: list[str]) -> str:
    """Names, types and labels. Of each histogram only the bounds, of a build only the names of its labels."""
    lines = [line for text in texts for line in text.splitlines()]
    types = {line.removeprefix("# TYPE ") for line in lines if line.startswith("# TYPE ")}
    labels = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    labels = {re.sub(r'(_(?:bucket|sum|count)\{)event="[^"]*",?', r"\1", line) for line in labels}
    labels = {re.sub(r'(version|python)="[^"]*"', r"\1", line) if "_info" in line else line for line in labels}
    return "".join(f"{line}\n" for line in sorted(types | labels))
