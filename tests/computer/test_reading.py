"""What an agent reads of the MCP servers of a computer: lists, resources, prompts, completions, and how it fails."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp import errors
from tests.computer.libraries import SECRET, Lend, Library, both, library, refused
from tests.computer.supervised import good, of_the_sdk, serving
from tests.waiting import until

ICONS = [{"src": "https://example.org/icon.png", "mimeType": "image/png"}]
REF, FILE = {"type": "ref/prompt", "name": "greet"}, {"uri": "file:///a"}
ABOUT_A_SERVER: list[tuple[str, dict[str, Any]]] = [
    *(("get_resources", {}), ("get_resource_templates", {}), ("read_resource", FILE), ("subscribe_resource", FILE)),
    *(("get_prompts", {}), ("get_prompt", {"name": "greet"})),
    ("complete", {"ref": REF, "argument": {"name": "who", "value": ""}}),
]
MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    ("read_resource", {"uri": ""}, "uri"),
    ("read_resource", {"uri": "file:///" + "x" * 3000}, "uri"),
    ("read_resource", {"uri": "file:///a", "questions": "maybe"}, "questions"),
    ("subscribe_resource", {"uri": 5}, "uri"),
    ("get_resources", {"cursor": 7}, "cursor"),
    ("get_prompt", {"name": 5}, "name"),
    ("get_prompt", {"name": "greet", "arguments": ["a"]}, "arguments"),
    ("complete", {"ref": "greet", "argument": {"name": "a", "value": ""}}, "ref"),
    ("complete", {"ref": REF, "argument": {"name": "a"}}, "argument"),
    ("complete", {"ref": REF}, "argument"),
]


async def whole(one: Library, event: str, field: str, **about: Any) -> list[dict[str, Any]]:
    """All pages of a list."""
    entries, cursor = [], {}
    while True:
        answer = await one.ask(event, **about, **cursor)
        entries += answer[field]
        if "next_cursor" not in answer:
            return entries
        cursor = {"cursor": answer["next_cursor"]}


@both
@pytest.mark.covers("9-get_servers", "secrets-masked")
async def test_servers_are_listed_with_what_they_say_of_themselves(lend: Lend, tmp_path: Path, era: str) -> None:
    off = library(era, tmp_path, name="off", disabled=True)
    one = await lend(era)
    await one.computer.put_server(off)
    answer = await one.ask("get_servers", None)
    assert answer.keys() == {"servers", "req_id"}
    first, second = answer["servers"]
    assert first.pop("capabilities")["resources"] == {"listChanged": True, "subscribe": True}
    names = {"name": "the library", "bundle_id": "the_library", "title": "The Library"}
    said = {"version": "1.2", "instructions": "Read the notes first. The key is ***.", "icons": ICONS}
    assert first == {**names, **said, "state": "ready"}
    assert second == {"name": "off", "bundle_id": "off", "state": "disabled", "capabilities": {}}


@both
@pytest.mark.covers("9-get_resources", "9-get_resource_templates", "9-read_resource", "secrets-masked")
async def test_resources_and_templates_are_listed_page_by_page_and_read(lend: Lend, era: str) -> None:
    one = await lend(era)
    page = await one.ask("get_resources", "the_library", req_id="r1")
    cached = {"ttlMs": 60_000, "cacheScope": "private"} if era == "newer" else {}
    notes, view = page.pop("resources")
    assert page == {"next_cursor": "2", "req_id": "r1", "_meta": {"seen": "***"}, **cached}
    about = {"uri": "file:///notes.txt", "name": "notes", "description": "What was said", "mime_type": "text/plain"}
    annotations = {"audience": ["user"], "priority": 0.3, "last_modified": "2026-01-01T00:00:00Z"}
    assert notes == {**about, "size": 5, "annotations": annotations, "_meta": {"own": {"deep": 1}}}
    assert view == {"uri": "ui://library/view", "name": "view", "mime_type": "text/html;profile=mcp-app"}
    titled = await one.ask("get_resources", titles=True)
    assert titled["resources"] == [{**notes, "title": "Notes", "icons": ICONS}, view]
    (private,) = (await one.ask("get_resources", cursor="2"))["resources"]
    assert private["uri"] == "file:///private/***.txt"
    templates = await whole(one, "get_resource_templates", "resource_templates")
    files = {
        "name": "files",
        "uriTemplate": "file:///{path}",
        "title": "Files",
        "mimeType": "text/plain",
        "icons": ICONS,
    }
    assert templates == [files, {"name": "row://{table}/{id}", "uriTemplate": "row://{table}/{id}"}]
    read = await one.ask("read_resource", uri="file:///notes.txt", req_id="r2")
    text = {"uri": "file:///notes.txt", "mimeType": "text/plain", "text": "hello", "_meta": {"own": 1}}
    assert read == {"contents": [text], "_meta": {"own": 1}, "req_id": "r2", **cached}
    assert (await one.ask("read_resource", uri="ui://library/view"))["contents"][0]["text"] == "hello"
    hidden = await one.ask("read_resource", uri=private["uri"])
    assert hidden["contents"][0]["text"] == "file:///private/***.txt says ***"


@both
@pytest.mark.covers("9-read_resource", "limit-message")
async def test_large_contents_go_by_the_side_band_or_are_refused_with_their_size(
    lend: Lend, tmp_path: Path, era: str
) -> None:
    one = await lend(era, max_message=512 * 1024)
    small = await one.ask("read_resource", uri="blob:400")
    assert base64.b64decode(small["contents"][0]["blob"]) == b"\x89PNG" * 100
    large = (await one.ask("read_resource", uri="blob:400000"))["contents"][0]
    assert large["blob"] == ""
    assert large["_meta"]["a2c_total_size"] == 400_000
    fetched = await one.ask("get_blob", None, blob_handle=large["_meta"]["a2c_blob_handle"])
    assert base64.b64decode(fetched["blob"])[:4] == b"\x89PNG"
    too_large = refused(await one.ask("read_resource", uri="text:600000"))
    assert isinstance(too_large, errors.AnswerTooLarge)
    assert too_large.details["size"] > 600_000
    moved = (await one.ask("read_resource", uri="text:600000", blobs=True))["contents"][0]
    assert (moved["text"], moved["_meta"]["a2c_total_size"]) == ("", 600_000)
    assert (await one.ask("read_resource", uri="text:200000"))["contents"][0]["text"] == "x" * 200_000
    one.computer.agents.limit_messages(150_000)  # of a Server that takes less
    assert isinstance(refused(await one.ask("read_resource", uri="text:200000")), errors.AnswerTooLarge)
    moved = (await one.ask("read_resource", uri="text:200000", blobs=True))["contents"][0]
    assert (moved["text"], moved["_meta"]["a2c_total_size"]) == ("", 200_000)


@both
@pytest.mark.covers("9-get_prompts", "9-get_prompt", "9-complete", "secrets-masked")
async def test_prompts_are_listed_and_filled_in_and_arguments_completed(lend: Lend, tmp_path: Path, era: str) -> None:
    other = library("newer" if era == "older" else "older", tmp_path, name="other")
    plain = good(name="plain")
    one = await lend(era, other, plain)
    greet, ask = (await one.ask("get_prompts"))["prompts"]
    about = {"name": "greet", "title": "A greeting", "description": "Greets somebody", "icons": ICONS}
    arguments = [{"name": "who", "description": "whom", "required": True}]
    assert greet == {"mcp_server": "the library", **about, "arguments": arguments}
    assert ask == {"mcp_server": "the library", "name": "ask"}
    names = ["greet", "ask", "sign"]
    assert [each["name"] for each in await whole(one, "get_prompts", "prompts")] == names
    merged = await whole(one, "get_prompts", "prompts", server=None)
    for server in ("the library", "other"):
        assert [each["name"] for each in merged if each["mcp_server"] == server] == names
    assert len(merged) == 6
    result = await one.ask("get_prompt", name="greet", arguments={"who": "Ann"}, req_id="r1")
    assert (result["description"], result["req_id"]) == ("A prompt", "r1")
    text, image = result["messages"]
    assert text == {"role": "user", "content": {"type": "text", "text": "Say hello to Ann, not to ***"}}
    assert image["content"]["data"] == ""
    assert image["content"]["_meta"]["a2c_total_size"] == 40_000
    about = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "A"}}
    completion = await one.ask("complete", **about, context={"arguments": {"x": "seen"}}, req_id="r2")
    values = {"values": ["A-1", "***", "seen"], "total": 3, "hasMore": False}
    assert completion == {"completion": values, "req_id": "r2"}
    about["argument"] = {"name": "who", "value": "many"}
    many = (await one.ask("complete", **about))["completion"]
    assert (len(many["values"]), many["total"], many["hasMore"]) == (100, 150, True)


@both
@pytest.mark.covers("9-read_resource", "9-get_prompt", "9-complete", "error-codes", "secrets-masked")
async def test_what_an_mcp_server_refuses_has_a_code_that_agents_know(lend: Lend, era: str) -> None:
    one = await lend(era)
    unknown = refused(await one.ask("read_resource", uri="file:///none"))
    assert isinstance(unknown, errors.ResourceNotFound)
    assert (unknown.code, unknown.details["uri"]) == (404, "file:///none")
    assert unknown.details["mcp_code"] == (-32602 if era == "newer" else -32002)
    failed = await one.ask("read_resource", uri="error:-32050")
    assert (failed["code"], failed["details"]["mcp_code"]) == (500, -32050)
    assert failed["details"]["mcp_data"] == {"token": "***"}
    assert SECRET not in json.dumps(failed)
    assert isinstance(refused(await one.ask("get_prompt", name="none")), errors.PromptNotFound)
    missing = refused(await one.ask("get_prompt", name="greet"))
    assert isinstance(missing, errors.BadRequest)
    assert missing.message.endswith("arguments: the prompt 'greet' needs who")
    assert missing.details["field"] == "arguments"
    assert missing.details["mcp_code"] == (-32602 if era == "newer" else -32603)
    numbers = refused(await one.ask("get_prompt", name="greet", arguments={"who": 7}))
    assert (numbers.code, numbers.details) == (400, {"field": "arguments"})
    cursor = refused(await one.ask("get_resources", cursor="elsewhere"))
    assert (cursor.code, cursor.details["field"]) == (400, "cursor")
    for event, more, field in MALFORMED:
        answer = await one.ask(event, **more)
        assert (answer["error"]["code"], answer["details"]["field"]) == (400, field)
    argument = {"name": "who", "value": ""}
    for ref, code in ({"type": "ref/prompt", "name": "unknown"}, 400), ({"type": "ref/other"}, 400):
        assert refused(await one.ask("complete", ref=ref, argument=argument)).code == code
    assert refused(await one.ask("get_prompts", None, cursor="2")).details["field"] == "cursor"
    for contents in ("7", "{}"):
        assert refused(await one.ask("read_resource", uri=f"bad:{contents}")).code == 500
    odd = await one.ask("read_resource", uri='bad:[7, {"uri": "a", "text": "kept"}]')
    assert odd["contents"] == [{"uri": "a", "text": "kept"}]


@pytest.mark.covers("9-get_resources", "error-codes")
async def test_a_server_that_is_not_there_or_cannot_do_it_has_its_code(lend: Lend) -> None:
    one = await lend(good(name="plain"))
    for event, more in ABOUT_A_SERVER:
        unknown = refused(await one.ask(event, "none", **more))
        assert type(unknown) is (errors.ServerNotRegistered if event == "get_resources" else errors.ServerNotFound)
    for event, more in ABOUT_A_SERVER[-3:]:
        answer = await one.ask(event, "plain", **more)
        assert isinstance(refused(answer), errors.CapabilityNotSupported)
        assert (answer["code"], answer["mcp_server"]) == (4015, "plain")
        assert answer["capability"] == ("completions" if event == "complete" else "prompts")
    assert refused(await one.ask("get_resource_templates", "plain")).code == 4015
    await one.computer.stop("plain")
    stopped = await one.ask("get_resources", "plain")
    assert (stopped["code"], stopped["mcp_server"]) == (4014, "plain")
    assert refused(await one.ask("read_resource", "plain", uri="window://good/two")).code == 500


@pytest.fixture(scope="module")
def guarded() -> Iterator[int]:
    """The port of a server over HTTP that refuses everybody."""
    with serving(token="another") as (port, _):
        yield port


@pytest.mark.covers("9-get_servers", "9-sign-in-results")
async def test_a_server_that_wants_a_sign_in_says_so(lend: Lend, guarded: int) -> None:
    web = {"name": "web", "type": "streamable", "server_parameters": {"url": f"http://127.0.0.1:{guarded}/mcp"}}
    one = await lend(web)
    await until(lambda: one.computer.status()["web"].state == "auth_required")
    (about,) = (await one.ask("get_servers", None))["servers"]
    assert about["auth"]["error_code"] == 4006
    assert about["auth"]["action"] == "user_authorization_required"
    for event, more in ABOUT_A_SERVER:
        answer = await one.ask(event, "web", **more)
        assert isinstance(refused(answer), errors.AuthorizationRequired)
        assert (answer["code"], answer["mcp_server"]) == (4006, "web")
        assert answer["details"]["auth_hint"]["message"].startswith("The MCP server 'web' wants a sign-in")


@both
@pytest.mark.covers("9-get_resources", "mcp-robust", "mcp-bounded")
async def test_lists_of_a_hostile_server_cost_its_own_entries_only(lend: Lend, tmp_path: Path, era: str) -> None:
    one = await lend(library(era, tmp_path, "hostile"))
    page = await one.ask("get_resources")
    assert page["resources"] == [{"uri": "file:///odd", "name": "file:///odd"}]
    assert (await one.ask("get_resources", cursor=page["next_cursor"]))["next_cursor"] == "2"
    assert (await one.ask("get_resource_templates"))["resource_templates"] == []
    for cursor, number, least in (("many", 2500, 3), ("heavy", 40, 3)):
        found, pages, rest = [], 0, {"cursor": cursor}
        while rest:
            answer = await one.ask("get_resources", **rest)
            assert len(json.dumps(answer)) < 1.1 * 1024 * 1024
            found += [each["uri"] for each in answer["resources"]]
            rest = {"cursor": answer["next_cursor"]} if "next_cursor" in answer else {}
            pages += 1
        assert found == [f"file:///{n}" for n in range(number)]
        assert pages >= least


@pytest.mark.covers("9-get_prompts", "mcp-robust")
async def test_prompts_of_all_servers_do_not_wait_for_one_that_is_broken(lend: Lend, tmp_path: Path) -> None:
    hostile = library("older", tmp_path, "hostile", name="hostile")
    one = await lend(hostile, "newer")
    answer = await one.ask("get_prompts", None)
    assert [each["mcp_server"] for each in answer["prompts"] if each["name"] == "greet"] == ["the library"]
    following = await one.ask("get_prompts", None, cursor=answer["next_cursor"])
    assert [each["name"] for each in following["prompts"] if each["mcp_server"] == "the library"] == ["sign"]


@pytest.mark.covers("9-read_resource", "9-get_prompt", "mcp-eras")
async def test_a_server_of_the_sdk_is_read(lend: Lend) -> None:
    one = await lend(of_the_sdk())
    listed = await one.ask("get_resources", "good")
    assert [each["uri"] for each in listed["resources"]] == ["window://good/one?priority=5", "window://good/two"]
    read = await one.ask("read_resource", "good", uri="window://good/two")
    assert read["contents"][0]["text"] == "second"
    missing = refused(await one.ask("read_resource", "good", uri="window://good/none"))
    assert isinstance(missing, errors.ResourceNotFound)
    assert isinstance(refused(await one.ask("get_prompt", "good", name="none")), errors.PromptNotFound)
