"""Which changes of a configuration wait for the owner's yes, decided without any file or server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from a2c_smcp.computer.configuration.consent import weigh
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.scanners.config import parse_scanner
from a2c_smcp.mcp_host.config.servers import parse_input, parse_server

pytestmark = pytest.mark.covers("config-consent")

TOKEN = "t0ken-0123456789"
FILES = {"command": "files", "args": ["/srv"], "env": {"API_TOKEN": TOKEN, "MODE": "safe"}}
REMOTE = {"type": "streamable", "url": "https://example.com/mcp", "headers": {"X-Tag": "a"}}
BOX: dict[str, Any] = {"read": ["/srv"], "write": ["/var/x"], "connect": [443], "memory": "512 MiB"}
BOXED = {**FILES, "sandbox": BOX}
META: dict[str, Any] = {"tool_meta": {"rm": {"auto_apply": False}}, "forbidden_tools": ["format"]}


def configuration(servers: dict[str, Any] | None = None, *inputs: dict[str, Any]) -> Configuration:
    return Configuration(
        {name: parse_server(server, name) for name, server in (servers or {}).items()},
        {each["id"]: parse_input(each) for each in inputs},
    )


def waiting(old: dict[str, Any] | None, new: dict[str, Any]) -> list[str]:
    """The lines of the question, for one server that changes; and that it is left as it was."""
    before = configuration({"s": old} if old else {})
    weighed = weigh(before, after := configuration({"s": new}))
    assert weighed.at_once.servers == (before if weighed.waiting else after).servers
    return [str(each) for each in weighed.waiting]


NEED_CONSENT: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str]] = {
    "a new server": (None, {"command": "sh", "args": ["-c", "id"]}, 'servers.s.command: "sh"'),
    "a new server that is disabled": (None, {"command": "sh", "disabled": True}, 'servers.s.command: "sh"'),
    "command": (FILES, {**FILES, "command": "sh"}, 'servers.s.command: "sh" instead of "files"'),
    "args": (FILES, {**FILES, "args": ["/"]}, 'servers.s.args: ["/"] instead of ["/srv"]'),
    "an argument less": (FILES, {**FILES, "args": []}, 'servers.s.args: [] instead of ["/srv"]'),
    "env": (FILES, {**FILES, "env": {**FILES["env"], "MODE": "x"}}, 'servers.s.env.MODE: "x" instead of "safe"'),
    "a variable more": (
        FILES,
        {**FILES, "env": {**FILES["env"], "LD_PRELOAD": "/tmp/x.so"}},
        'servers.s.env.LD_PRELOAD: "/tmp/x.so"',
    ),
    "a variable less": (FILES, {**FILES, "env": {"API_TOKEN": TOKEN}}, 'servers.s.env.MODE: nothing instead of "safe"'),
    "a secret": (
        FILES,
        {**FILES, "env": {**FILES["env"], "API_TOKEN": "an0ther-9876543210"}},
        "servers.s.env.API_TOKEN: changed, and not shown, since it may hold a secret",
    ),
    "cwd": (FILES, {**FILES, "cwd": "/"}, 'servers.s.cwd: "/"'),
    "url": (REMOTE, {**REMOTE, "url": "https://evil.example/mcp"}, "servers.s.url: "),
    "headers": (REMOTE, {**REMOTE, "headers": {"X-Tag": "b"}}, 'servers.s.headers.X-Tag: "b" instead of "a"'),
    "transport": (REMOTE, {**REMOTE, "type": "sse"}, 'servers.s.type: "sse" instead of "streamable"'),
    "enabled": ({**FILES, "disabled": True}, FILES, "servers.s.disabled: false instead of true"),
    "a tool that need not ask": (
        {**FILES, **META},
        {**FILES, **META, "tool_meta": {"rm": {"auto_apply": True}}},
        'servers.s: tool rm: "runs without asking" instead of "asks"',
    ),
    "a default of tools": (
        {**FILES, **META},
        {**FILES, **META, "default_tool_meta": {"auto_apply": True}},
        'servers.s: every tool without a setting of its own: "runs without asking" instead of "asks"',
    ),
    "an exception of a default": (
        {**FILES, "default_tool_meta": {"auto_apply": True}, **META},
        {**FILES, "default_tool_meta": {"auto_apply": True}},
        "servers.s: tool rm: ",
    ),
    "an input as a yes": (FILES, {**FILES, "default_tool_meta": {"auto_apply": "${input:x}"}}, "servers.s: every tool"),
    "a forbidden tool less": (
        {**FILES, **META},
        {**FILES, "tool_meta": META["tool_meta"]},
        "servers.s.forbidden_tools",
    ),
    "an alias": (FILES, {**FILES, "tool_meta": {"rm": {"alias": "ls"}}}, 'servers.s.tool_meta: {"rm": "ls"}'),
    "a script": (FILES, {**FILES, "vrl": "."}, 'servers.s.vrl: "."'),
    "private questions for agents": (
        FILES,
        {**FILES, "questions_for_agents": ["url"]},
        'servers.s.questions_for_agents: ["url"]',
    ),
    "windows of any kind": (FILES, {**FILES, "desktop": "any"}, 'servers.s.desktop: "any"'),
    "no sandbox any more": (BOXED, FILES, 'servers.s.sandbox: nothing instead of {"read": ["/srv"]'),
    "more to read": (BOXED, {**BOXED, "sandbox": {**BOX, "read": ["/srv", "/"]}}, "servers.s.sandbox: "),
    "more to write": (BOXED, {**BOXED, "sandbox": {**BOX, "write": ["/srv"]}}, "servers.s.sandbox: "),
    "anything to write": (BOXED, {**BOXED, "sandbox": {**BOX, "write": "any"}}, "servers.s.sandbox: "),
    "a port more": (BOXED, {**BOXED, "sandbox": {**BOX, "connect": [443, 22]}}, "servers.s.sandbox: "),
    "more memory": (BOXED, {**BOXED, "sandbox": {**BOX, "memory": "1 GiB"}}, "servers.s.sandbox: "),
    "more memory by default": (BOXED, {**BOXED, "sandbox": "strict"}, 'servers.s.sandbox: "strict" instead of '),
    "more processes": (BOXED, {**BOXED, "sandbox": {**BOX, "processes": "any"}}, "servers.s.sandbox: "),
    "a sandbox that is not required": (BOXED, {**BOXED, "sandbox": {**BOX, "required": False}}, "servers.s.sandbox: "),
    "an input as a sandbox": (BOXED, {**BOXED, "sandbox": "${input:x}"}, "servers.s.sandbox: "),
    "no secret any more": (FILES, {**FILES, "secrets": {"API_TOKEN": False}}, "servers.s.secrets"),
    "changed tools may run": (FILES, {**FILES, "pin": "off"}, 'servers.s.pin: "off"'),
    "changed tools need not ask": (
        {**FILES, "pin": "ask"},
        {**FILES, "pin": "warn"},
        'servers.s.pin: "warn" instead of "ask"',
    ),
    "changed tools may be those of the program": ({**FILES, "pin": "ask"}, FILES, "servers.s.pin: nothing instead"),
    "not declared any more": ({**FILES, "secrets": {"MODE": True}}, FILES, "servers.s.secrets"),
}


@pytest.mark.parametrize(("old", "new", "line"), NEED_CONSENT.values(), ids=NEED_CONSENT)
def test_a_change_of_what_runs_or_asks_waits_and_is_shown_without_secrets(
    old: dict[str, Any] | None, new: dict[str, Any], line: str
) -> None:
    lines = waiting(old, new)
    assert any(each.startswith(line) for each in lines), lines
    assert TOKEN not in repr(lines)


HARMLESS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": (FILES, FILES),
    "disabled": (FILES, {**FILES, "disabled": True}),
    "a forbidden tool more": (FILES, {**FILES, "forbidden_tools": ["rm"]}),
    "a tool that asks": (
        {**FILES, "default_tool_meta": {"auto_apply": True}},
        {**FILES, "default_tool_meta": {"auto_apply": True}, "tool_meta": {"rm": {"auto_apply": False}}},
    ),
    "no default any more": ({**FILES, "default_tool_meta": {"auto_apply": True}}, FILES),
    "a sandbox": (FILES, BOXED),
    "less to read": (BOXED, {**BOXED, "sandbox": {**BOX, "read": []}}),
    "what may be written may be read": (BOXED, {**BOXED, "sandbox": {**BOX, "read": ["/srv", "/var/x"]}}),
    "less memory, fewer processes": (BOXED, {**BOXED, "sandbox": {**BOX, "memory": 1000000, "processes": 8}}),
    "tags": (FILES, {**FILES, "tool_meta": {"rm": {"tags": ["x"]}}}),
    "a mapper": (FILES, {**FILES, "default_tool_meta": {"ret_object_mapper": {"a": "b"}}}),
    "timeouts": (REMOTE, {**REMOTE, "timeout": 9}),
    "no script any more": ({**FILES, "vrl": "."}, FILES),
    "changed tools ask": (FILES, {**FILES, "pin": "ask"}),
    "changed tools are told": ({**FILES, "pin": "off"}, {**FILES, "pin": "warn"}),
    "a secret declared": (FILES, {**FILES, "secrets": {"MODE": True}}),
    "a field without a meaning": (FILES, {**FILES, "comment": "hello"}),
}


@pytest.mark.parametrize(("old", "new"), HARMLESS.values(), ids=HARMLESS)
def test_a_change_that_only_restricts_or_describes_is_applied_at_once(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert waiting(old, new) == []


def test_a_server_that_is_removed_goes_at_once_while_another_waits() -> None:
    before = configuration({"a": FILES, "b": FILES})
    weighed = weigh(before, configuration({"b": {**FILES, "command": "sh"}, "c": FILES}))
    assert weighed.at_once.servers == {"b": before.servers["b"]}
    assert {each.place.split(".")[1] for each in weighed.waiting} == {"b", "c"}


PASSWORD = {"id": "p", "type": "promptString", "description": "", "password": True, "default": TOKEN}
COMMAND = {"id": "c", "type": "command", "command": "pass show x", "args": {"k": "v"}}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (None, COMMAND, 'inputs.c.command: "pass show x"'),
        (COMMAND, {**COMMAND, "command": "sh -c id"}, 'inputs.c.command: "sh -c id" instead of "pass show x"'),
        (COMMAND, {**COMMAND, "args": {"k": "w"}}, "inputs.c.args"),
        (PASSWORD, {**PASSWORD, "default": "other-0123456789"}, "inputs.p.default: changed, and not shown"),
        (PASSWORD, {**PASSWORD, "password": False}, "inputs.p.password: false instead of true"),
        (PASSWORD, {**PASSWORD, "description": "hello"}, ""),
        ({**PASSWORD, "password": False}, PASSWORD, ""),
    ],
)
def test_inputs_that_decide_a_value_wait(old: dict[str, Any] | None, new: dict[str, Any], line: str) -> None:
    before = configuration({}, *([old] if old else []))
    weighed = weigh(before, after := configuration({}, new))
    lines = [str(each) for each in weighed.waiting]
    assert weighed.at_once.inputs == (before if line else after).inputs
    assert [each for each in lines if each.startswith(line)] if line else lines == []
    assert TOKEN not in repr(lines)


REDACTS: dict[str, Any] = {"function": "redact:scan"}
PROGRAM: dict[str, Any] = {"command": "scan", "args": ["--api-key", TOKEN]}


@pytest.mark.covers("scanners")
@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ([REDACTS], [], 'scanners: nothing instead of [{"function": "redact:scan"}]'),
        ([], [REDACTS], 'scanners: [{"function": "redact:scan"}]'),
        ([REDACTS], [{**REDACTS, "when": ["after"]}], 'scanners: [{"function": "redact:scan", "when": ["after"]}]'),
        ([REDACTS], [{**REDACTS, "deadline": 600}], "scanners: "),
        ([REDACTS, PROGRAM], [PROGRAM, REDACTS], 'scanners: [{"command": "scan", "args": ["--api-key", "***"]}, '),
    ],
    ids=["less", "more", "later", "slower", "another order"],
)
def test_scanners_change_only_after_a_yes(old: list[Any], new: list[Any], line: str) -> None:
    before, after = (
        replace(configuration({"s": FILES}), scanners=tuple(map(parse_scanner, each))) for each in (old, new)
    )
    weighed = weigh(before, replace(after, servers={}))
    (shown,) = map(str, weighed.waiting)
    assert shown.startswith(line)
    assert TOKEN not in shown
    assert weighed.at_once == replace(before, servers={}), "the rest is applied"


def test_a_value_cannot_hide_another_line() -> None:
    (line,) = waiting(FILES, {**FILES, "args": ["a\n\u202e" + " " * 500 + "x" * 5000 + "; rm -rf /"]})
    assert "\n" not in line
    assert "\\u202e" in line
    assert "[500 blanks]" in line
    assert "more characters" in line
    assert '; rm -rf /"]' in line
