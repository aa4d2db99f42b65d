"""Both clients read what real MCP servers of a real Computer offer, through a real Server."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import CapabilityNotSupported, NotFound, SMCPError
from tests.agent.twins import KINDS, at_work
from tests.computer.hosted import hosted, ready
from tests.computer.libraries import both as eras
from tests.computer.libraries import library as library_config
from tests.computer.supervised import good, quick
from tests.waiting import until

both = pytest.mark.parametrize("kind", KINDS, ids=["async", "blocking"])

LIBRARY = Path(__file__).parents[2] / "examples" / "library_server.py"
CATALOGUE = "library://catalogue"


@pytest.fixture
async def library(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Computer]:
    computer = Computer("laptop", approve=lambda request: True)
    parameters = {"command": sys.executable, "args": [str(LIBRARY)]}
    computer.add_server({"name": "my library", "type": "stdio", "server_parameters": parameters})
    computer.add_server(good())
    async with hosted(computer, shared_hub.url, office, tmp_path):
        await ready(computer, "my library", "good")
        yield computer


@pytest.fixture
def start(shared_hub: Any, office: str) -> Callable[..., Any]:
    return lambda kind, **options: at_work(kind, **{"url": shared_hub.url, "office": office, **options})


@both
@pytest.mark.covers("agent-reads", "agent-links", "agent-subscribes", "agent-twins")
async def test_everything_that_a_server_offers_is_read(kind: Any, library: Computer, start: Any) -> None:
    updates: list[str] = []
    async with start(kind) as agent:
        (server,) = [each for each in await agent.get_servers("laptop") if each["name"] == "my library"]
        assert (server["bundle_id"], server["state"], server["title"]) == ("my_library", "ready", "Library")
        assert server["instructions"].startswith("Read the catalogue first.")
        for name in ("my library", "my_library"):
            listed = (await agent.get_resources("laptop", name))["resources"]
            assert [each["uri"] for each in listed] == [CATALOGUE, "library://stamp"]
            assert listed[1]["mimeType"] == "image/png"
        (template,) = (await agent.get_resource_templates("laptop", "my_library"))["resourceTemplates"]
        assert (template["uriTemplate"], template["mimeType"]) == ("library://books/{title}", "text/plain")
        (stamp,) = (await agent.read_resource("laptop", "my library", "library://stamp"))["contents"]
        assert base64.b64decode(stamp["blob"]).startswith(b"\x89PNG")
        (prompt,) = (await agent.get_prompts("laptop"))["prompts"]
        assert prompt["mcp_server"] in ("my library", "my_library")
        assert [each["name"] for each in prompt["arguments"]] == ["title", "words"]
        asked = await agent.get_prompt("laptop", prompt["mcp_server"], "review", {"title": "Emma"})
        assert asked["messages"][0]["content"]["text"].startswith("Write a review of Emma in at most 100 words.")
        ref = {"type": "ref/prompt", "name": "review"}
        found = await agent.complete("laptop", "my library", ref, {"name": "title", "value": "mo"})
        assert found["completion"]["values"] == ["Moby-Dick"]
        result = await agent.emit_tool_call("laptop", "find_book", {"word": "Ishmael"})
        assert (await agent.read_link(result))["contents"][0]["text"].startswith("Call me Ishmael.")
        await agent.subscribe_resource("laptop", "my library", CATALOGUE, on_update=updates.append)
        await agent.emit_tool_call("laptop", "lend", {"title": "Walden"})
        await until(lambda: updates)
        assert updates[0] == CATALOGUE
        assert "Walden (lent)" in (await agent.read_resource("laptop", "my library", CATALOGUE))["contents"][0]["text"]
        await agent.unsubscribe_resource("laptop", "my library", CATALOGUE)


@both
@pytest.mark.covers("agent-reads")
async def test_what_is_not_there_is_an_error_of_its_kind(kind: Any, library: Computer, start: Any) -> None:
    async with start(kind) as agent:
        with pytest.raises(NotFound):
            await agent.get_resources("laptop", "no such server")
        with pytest.raises(NotFound):
            await agent.read_resource("laptop", "my library", "library://nothing")
        with pytest.raises(SMCPError):
            await agent.get_prompt("laptop", "my library", "nothing")
        with pytest.raises(CapabilityNotSupported):
            await agent.get_prompts("laptop", "good")
        with pytest.raises(NotFound, match="No such computer"):
            await agent.get_servers("tower")


@both
@eras
@pytest.mark.covers("agent-reads", "questions-result")
async def test_what_is_asked_first_is_the_answer_and_the_next_request_goes_on(
    kind: Any, era: str, shared_hub: Any, office: str, tmp_path: Path, start: Any
) -> None:
    computer = Computer("laptop", policy=quick())
    computer.add_server(library_config(era, tmp_path))
    async with hosted(computer, shared_hub.url, office, tmp_path), start(kind) as agent:
        await ready(computer, "the library")
        for method, what, field in (("read_resource", "ask:x", "contents"), ("get_prompt", "ask", "messages")):
            ask = getattr(agent, method)
            asked = await ask("laptop", "the_library", what, questions="result")
            ((key, request),) = asked["inputRequests"].items()
            assert request["params"]["message"] == "Which city?"
            given = {key: {"action": "accept", "content": {"city": "PEK"}}}
            done = await ask("laptop", "the_library", what, input_responses=given, request_state=asked["requestState"])
            assert "PEK" in str(done[field][0])
            unasked = await ask("laptop", "the_library", what)
            assert "nobody: cancel" in str(unasked[field][0])
