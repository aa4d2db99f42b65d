"""Resources, templates, prompts and completions of a registry, in one process."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.registry import (
    EmbeddedResource,
    Image,
    InvalidArguments,
    LoopIsRunning,
    MCPRegistry,
    PromptMessage,
    UnknownPrompt,
    UnknownResource,
)
from a2c_smcp.registry.sources import MAX_URI, URITemplate, loose_matcher

pytestmark = pytest.mark.covers("registry-readable")


def contents(registry: MCPRegistry, uri: str) -> list[dict[str, Any]]:
    """What a resource contains, the same for callers that block and for those that await."""
    read = registry.read_resource(uri)
    assert asyncio.run(registry.aread_resource(uri)) == read
    found: list[dict[str, Any]] = read["contents"]
    return found


# Resources


def test_texts_and_bytes_are_resources(registry: MCPRegistry) -> None:
    registry.add_resource("note://a/readme", "hello", title="Read me", annotations={"priority": 1}, meta={"k": 1})
    registry.add_resource("note://logo", b"\x00\x01", name="logo", mime_type="image/png", size=2)
    assert registry.resources() == [
        {
            "uri": "note://a/readme",
            "name": "readme",
            "title": "Read me",
            "mimeType": "text/plain",
            "annotations": {"priority": 1},
            "_meta": {"k": 1},
        },
        {"uri": "note://logo", "name": "logo", "mimeType": "image/png", "size": 2},
    ]
    assert contents(registry, "note://a/readme") == [
        {"uri": "note://a/readme", "mimeType": "text/plain", "text": "hello"}
    ]
    assert contents(registry, "note://logo") == [{"uri": "note://logo", "mimeType": "image/png", "blob": "AAE="}]


def test_a_file_is_read_each_time(registry: MCPRegistry, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"n": 1}')
    registry.add_resource("file:///data.json", path)
    assert contents(registry, "file:///data.json")[0] == {
        "uri": "file:///data.json",
        "mimeType": "application/json",
        "text": '{"n": 1}',
    }
    path.write_text("[]")
    assert contents(registry, "file:///data.json")[0]["text"] == "[]"
    path.unlink()
    with pytest.raises(UnknownResource, match="is gone"):
        registry.read_resource("file:///data.json")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", [{"uri": "x://y", "mimeType": "text/plain", "text": "text"}]),
        (b"\x00", [{"uri": "x://y", "mimeType": "application/octet-stream", "blob": "AA=="}]),
        ({"n": [1]}, [{"uri": "x://y", "mimeType": "application/json", "text": '{"n": [1]}'}]),
        (None, [{"uri": "x://y", "mimeType": "application/json", "text": "null"}]),
        (
            [EmbeddedResource("x://y/1", "one"), EmbeddedResource("x://y/2", b"\x00", "image/png")],
            [{"uri": "x://y/1", "text": "one"}, {"uri": "x://y/2", "mimeType": "image/png", "blob": "AA=="}],
        ),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_function_reads_a_resource(registry: MCPRegistry, kind: str, value: Any, expected: Any) -> None:
    async def read_async() -> Any:
        """Reads it."""
        return value

    def read() -> Any:
        """Reads it."""
        return value

    registry.resource("x://y", name="it")(read if kind == "sync" else read_async)
    assert registry.resources() == [{"uri": "x://y", "name": "it", "description": "Reads it."}]
    assert contents(registry, "x://y") == expected


async def test_an_async_function_is_not_run_inside_a_loop_by_a_blocking_call(registry: MCPRegistry) -> None:
    @registry.resource("x://y")
    async def read() -> str:
        return "text"

    with pytest.raises(LoopIsRunning):
        registry.read_resource("x://y")
    assert (await registry.aread_resource("x://y"))["contents"][0]["text"] == "text"


def test_an_image_is_no_content_of_a_resource(registry: MCPRegistry) -> None:
    registry.add_resource("x://y", lambda: Image(b""), name="y")
    with pytest.raises(TypeError, match="not Image"):
        registry.read_resource("x://y")


def test_a_resource_can_be_replaced_and_removed(registry: MCPRegistry) -> None:
    registry.add_resource("x://y", "old")
    registry.add_resource("x://y", "new")
    assert [each["text"] for each in contents(registry, "x://y")] == ["new"]
    registry.remove_resource("x://y")
    assert registry.resources() == []
    for use in (registry.remove_resource, registry.read_resource):
        with pytest.raises(KeyError, match="x://y"):
            use("x://y")


# Templates


def test_the_variables_of_a_template_are_parameters(registry: MCPRegistry) -> None:
    @registry.resource("notes://{user}/{number}{?style}", mime_type="text/markdown")
    def note(user: str, number: int, style: str = "plain") -> str:
        """A note of a user."""
        return f"{user} {number + 1} {style}"

    assert registry.resources() == []
    assert registry.resource_templates() == [
        {
            "uriTemplate": "notes://{user}/{number}{?style}",
            "name": "note",
            "description": "A note of a user.",
            "mimeType": "text/markdown",
        }
    ]
    read = contents(registry, "notes://ad%20a/7?style=big&other=1")
    assert read == [{"uri": "notes://ad%20a/7?style=big&other=1", "mimeType": "text/markdown", "text": "ad a 8 big"}]
    assert contents(registry, "notes://ada/7")[0]["text"] == "ada 8 plain"
    with pytest.raises(InvalidArguments):
        registry.read_resource("notes://ada/seven")
    registry.remove_resource("notes://{user}/{number}{?style}")
    with pytest.raises(UnknownResource):
        registry.read_resource("notes://ada/7")


def test_a_resource_wins_over_a_template_and_the_first_template_over_others(registry: MCPRegistry) -> None:
    registry.add_resource("a://{x}", lambda x: f"first {x}", name="first")
    registry.add_resource("a://{+x}", lambda x: f"second {x}", name="second")
    registry.add_resource("a://1", "exact")
    assert [contents(registry, uri)[0]["text"] for uri in ("a://1", "a://2", "a://2/3")] == [
        "exact",
        "first 2",
        "second 2/3",
    ]


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("a://{x}", "a://1", {"x": "1"}),
        ("a://{x}/b", "a://1/b", {"x": "1"}),
        ("a://{x}/b", "a://1/c", None),
        ("a://{x}", "a://", None),
        ("a://{x}", "a://1/2", None),
        ("a://{x}", "a://1%2F2", None),
        ("a://{x}", "a://1%5C2", None),
        ("a://{x}", "a://..", None),
        ("a://{x}", "a://%2e%2e", None),
        ("a://{x}", "a://.", None),
        ("a://{x}", "a://1?y=2", None),
        ("a://{+x}", "a://1/2", {"x": "1/2"}),
        ("a://{+x}", "a://1/../2", None),
        ("a://{+x}", "a://1/%2e%2e/2", None),
        ("a://{+x}", "a://1/%2e%2e%5c2", None),
        ("a://b{?x,y}", "a://b", {}),
        ("a://b{?x,y}", "a://b?y=%2F&z=3", {"y": "/"}),
        ("a://b{?x,y}", "a://b?x=../c", None),
        ("a.b://{x}", "a-b://1", None),
        ("a://{x}", f"a://{'1' * MAX_URI}", None),
    ],
)
def test_a_uri_matches_a_template(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert URITemplate(template).match(uri) == values


@pytest.mark.covers("registry-linear")
@pytest.mark.parametrize(
    ("template", "part", "end"),
    [
        ("a://{+x}/{+y}/{+z}", "/", "\n"),
        ("a://{x}-{y}-{z}", "-", "/"),
        ("a://{x}{y}{z}{+w}b", "1", "\nb"),
        ("a://{+x}aab{+y}aab{+z}", "a", "\n"),
    ],
)
def test_the_time_to_match_grows_with_the_length_of_a_uri_and_not_with_a_power_of_it(
    template: str, part: str, end: str
) -> None:
    compiled, uri = URITemplate(template), "a://" + part * 2000 + end
    began = time.process_time()
    assert compiled.match(uri) is None
    assert compiled.match("a://" + part * (MAX_URI - 8) + end) is None
    assert time.process_time() - began < 1


@pytest.mark.covers("registry-linear")
@given(
    st.lists(st.tuples(st.sampled_from(["", "+"]), st.sampled_from(["", "a", "/", "ab", "-", "aa"])), max_size=4),
    st.lists(st.sampled_from(["a", "b", "ab", "/", "-", "?", "\n"]), max_size=12),
)
def test_each_variable_takes_as_much_as_it_can_the_first_ones_first(
    variables: list[tuple[str, str]], letters: list[str]
) -> None:
    template = "".join(f"{{{operator}v{place}}}{literal}" for place, (operator, literal) in enumerate(variables))
    patterns = {"": "[^/?#]+", "+": ".+"}
    expected = re.fullmatch("".join(f"({patterns[one]}){re.escape(two)}" for one, two in variables), "".join(letters))
    values = URITemplate(template).match("".join(letters))
    assert (list(values.values()) if values is not None else None) == (list(expected.groups()) if expected else None)


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("x:{a}", "x:1", True),
        ("x:{a}/y{?q,r}", "x:1/y?q=2", True),
        ("x:{a}/y/{b}", "x:1/y/2", True),
        ("x:{a}/y/{b}", "x:1/z/2", False),
        ("x:{a}y", "x:1", False),
        ("x:{a}ab{b}b", "x:ab", False),
        ("x:plain", "x:plain", True),
        ("x:plain", "x:other", False),
        ("x:{a}", "x:" + "y" * MAX_URI, False),
        ("{a}" * 500 + "x", "y" * 5000, False),
        ("{a}y" * 500 + "x", "y" * 5000, False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_uri_may_belong_to_a_template_of_another_program(template: str, uri: str, fits: bool) -> None:
    assert (loose_matcher(template)(uri) is not None) is fits


@pytest.mark.parametrize("template", ["a://{x", "a://x}", "a://{x}{x}", "a://{/x}", "a://{x*}", "a://{?x}/b", "a://{}"])
def test_other_templates_are_refused(registry: MCPRegistry, template: str) -> None:
    with pytest.raises(ValueError, match=r"not a URI template|not supported"):
        URITemplate(template)


@pytest.mark.parametrize(
    ("uri", "function"),
    [("a://{x}", lambda: ""), ("a://{x}", lambda x, y: ""), ("a://b", lambda x: ""), ("a://b{?x}", lambda x: "")],
)
def test_parameters_must_be_the_variables_of_the_uri(
    registry: MCPRegistry, uri: str, function: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match=r"must have the variables of the URI as its parameters: [xy]"):
        registry.add_resource(uri, function, name="it")


# Prompts


def test_parameters_are_the_arguments_of_a_prompt(registry: MCPRegistry) -> None:
    @registry.prompt(title="Review", icons=[{"src": "a.png"}], meta={"k": 1})
    def review(code: str, depth: int = 1) -> str:
        """Review some code.

        Args:
            code: what to look at
        """
        return f"Review {code} {depth + 1} times"

    assert registry.prompts() == [
        {
            "name": "review",
            "title": "Review",
            "description": "Review some code.",
            "arguments": [
                {"name": "code", "description": "what to look at", "required": True},
                {"name": "depth", "required": False},
            ],
            "icons": [{"src": "a.png"}],
            "_meta": {"k": 1},
        }
    ]
    prompt = registry.get_prompt("review", {"code": "x", "depth": "2"})
    assert prompt == {
        "description": "Review some code.",
        "messages": [{"role": "user", "content": {"type": "text", "text": "Review x 3 times"}}],
    }
    assert asyncio.run(registry.aget_prompt("review", {"code": "x", "depth": "2"})) == prompt
    with pytest.raises(InvalidArguments, match="code"):
        registry.get_prompt("review")
    with pytest.raises(UnknownPrompt, match="did you mean 'review'"):
        registry.get_prompt("reviews", {})
    registry.remove_prompt("review")
    assert registry.prompts() == []
    with pytest.raises(KeyError):
        registry.remove_prompt("review")


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [("user", "text")]),
        (PromptMessage("hi", "assistant"), [("assistant", "text")]),
        (Image(b""), [("user", "image")]),
        (["hi", PromptMessage([Image(b""), "look"], "assistant")], [("user", "text"), *[("assistant", "")] * 2]),
        ({"role": "assistant", "content": {"type": "text", "text": "hi"}}, [("assistant", "text")]),
        ({"n": 1}, [("user", "text")]),
        ([], []),
    ],
)
async def test_a_prompt_is_made_of_messages(registry: MCPRegistry, value: Any, messages: list[Any]) -> None:
    @registry.prompt
    async def say() -> Any:
        return value

    found = [(each["role"], each["content"]["type"]) for each in (await registry.aget_prompt("say"))["messages"]]
    assert [(role, kind or found[place][1]) for place, (role, kind) in enumerate(messages)] == found


# Completion


def values(registry: MCPRegistry, *about: Any) -> list[str]:
    completed = registry.complete(*about)
    assert asyncio.run(registry.acomplete(*about)) == completed
    found: list[str] = completed["completion"]["values"]
    return found


def test_arguments_are_completed(registry: MCPRegistry) -> None:
    async def of_user(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{arguments.get('user', 'nobody')}-{value}"]

    complete = {"user": ["Ada", "Bob", "alan"], "note": of_user}

    @registry.prompt(complete=complete)
    def read(user: str, note: str, style: Literal["plain", "big"] = "plain") -> str:
        return ""

    registry.add_resource("notes://{user}", lambda user: "", name="notes", complete={"user": lambda value, _: [value]})
    assert values(registry, "read", "user", "a") == ["Ada", "alan"]
    assert values(registry, "read", "note", "x", {"user": "Ada"}) == ["Ada-x"]
    assert values(registry, "read", "style", "") == ["plain", "big"]
    assert values(registry, {"type": "ref/prompt", "name": "read"}, "user", "B") == ["Bob"]
    assert values(registry, "notes://{user}", "user", "q") == ["q"]
    assert values(registry, {"type": "ref/resource", "uri": "notes://{user}"}, "user", "q") == ["q"]
    assert values(registry, "notes://ada", "user", "q") == []
    assert values(registry, "read", "unknown") == []
    with pytest.raises(UnknownPrompt):
        registry.complete({"type": "ref/prompt", "name": "write"}, "user")
    with pytest.raises(UnknownResource):
        registry.complete("write", "user")


def test_as_many_completions_as_mcp_allows(registry: MCPRegistry) -> None:
    registry.prompt(name="pick", complete={"n": [str(number) for number in range(250)]})(lambda n: "")
    completion = registry.complete("pick", "n")["completion"]
    assert (len(completion["values"]), completion["total"], completion["hasMore"]) == (100, 250, True)
    json.dumps(completion)


def test_only_parameters_can_be_completed(registry: MCPRegistry) -> None:
    with pytest.raises(TypeError, match="no parameter m to complete"):
        registry.prompt(name="pick", complete={"m": []})(lambda n: "")


# Changes


def test_listeners_are_told_of_changes_of_what_there_is(registry: MCPRegistry) -> None:
    heard: list[str] = []
    stop = registry.on_readable_change(heard.append)
    registry.on_readable_change(lambda change: 1 / 0)
    registry.add_resource("x://y", "")
    registry.prompt(name="say")(lambda: "")
    registry.tool(name="tool")(lambda: "")
    registry.remove_prompt("say")
    assert heard == ["resources", "prompts", "prompts"]
    stop()
    registry.remove_resource("x://y")
    assert len(heard) == 3


def test_a_resource_can_be_watched(registry: MCPRegistry) -> None:
    heard: list[str] = []
    registry.resource_updated("x://y")
    stop = registry.watch_resource("x://y", heard.append)
    registry.watch_resource("x://y", lambda uri: 1 / 0)
    registry.resource_updated("x://y")
    registry.resource_updated("x://z")
    assert heard == ["x://y"]
    stop()
    stop()
    registry.resource_updated("x://y")
    assert heard == ["x://y"]
