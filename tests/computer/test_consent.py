"""Which changes of a configuration wait for the owner's yes, decided without any file or server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.configuration.watch import weigh
from a2c_smcp.computer.consent.programs import parse_scanner
from a2c_smcp.mcp_host.config.servers import parse_input, parse_server

pytestmark = pytest.mark.covers("config-consent")

TOKEN = "t0ken-0123456789"
NOT_SHOWN = "changed, and not shown, since it may hold a secret"
ENV = {"API_TOKEN": TOKEN, "MODE": "safe"}
FILES = {"command": "files", "args": ["/srv"], "env": ENV}
REMOTE = {"type": "streamable", "url": "https://example.com/mcp", "headers": {"X-Tag": "a"}}
BOX: dict[str, Any] = {"read": ["/srv"], "write": ["/var/x"], "connect": [443], "memory": "512 MiB"}
BOXED = {**FILES, "sandbox": BOX}
RULED = {**FILES, "tool_meta": {"rm": {"auto_apply": False}}, "forbidden_tools": ["format"]}


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


ALLOWS = {"auto_apply": True}
UNASKED = 'every tool without a setting of its own: "runs without asking" instead of "asks"'
NEED_CONSENT: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str]] = {
    "a new server": (None, {"command": "sh", "args": ["-c", "id"]}, '.command: "sh"'),
    "a new server that is disabled": (None, {"command": "sh", "disabled": True}, '.command: "sh"'),
    "command": (FILES, {"command": "sh"}, '.command: "sh" instead of "files"'),
    "args": (FILES, {"args": ["/"]}, '.args: ["/"] instead of ["/srv"]'),
    "an argument less": (FILES, {"args": []}, '.args: [] instead of ["/srv"]'),
    "env": (FILES, {"env": {**ENV, "MODE": "x"}}, '.env.MODE: "x" instead of "safe"'),
    "a variable more": (FILES, {"env": {**ENV, "LD_PRELOAD": "/tmp/x.so"}}, '.env.LD_PRELOAD: "/tmp/x.so"'),
    "a variable less": (FILES, {"env": {"API_TOKEN": TOKEN}}, '.env.MODE: nothing instead of "safe"'),
    "a secret": (FILES, {"env": {**ENV, "API_TOKEN": "an0ther-9876543210"}}, f".env.API_TOKEN: {NOT_SHOWN}"),
    "cwd": (FILES, {"cwd": "/"}, '.cwd: "/"'),
    "url": (REMOTE, {"url": "https://evil.example/mcp"}, ".url: "),
    "headers": (REMOTE, {"headers": {"X-Tag": "b"}}, '.headers.X-Tag: "b" instead of "a"'),
    "transport": (REMOTE, {"type": "sse"}, '.type: "sse" instead of "streamable"'),
    "enabled": ({**FILES, "disabled": True}, {"disabled": None}, ".disabled: false instead of true"),
    "a tool that need not ask": (RULED, {"tool_meta": {"rm": ALLOWS}}, ': tool rm: "runs without asking" instead of'),
    "a default of tools": (RULED, {"default_tool_meta": ALLOWS}, f": {UNASKED}"),
    "an exception of a default": ({**RULED, "default_tool_meta": ALLOWS}, {"tool_meta": None}, ": tool rm: "),
    "an input as a yes": (FILES, {"default_tool_meta": {"auto_apply": "${input:x}"}}, ": every tool"),
    "a forbidden tool less": (RULED, {"forbidden_tools": None}, ".forbidden_tools"),
    "an alias": (FILES, {"tool_meta": {"rm": {"alias": "ls"}}}, '.tool_meta: {"rm": "ls"}'),
    "a script": (FILES, {"vrl": "."}, '.vrl: "."'),
    "private questions for agents": (FILES, {"questions_for_agents": ["url"]}, '.questions_for_agents: ["url"]'),
    "windows of any kind": (FILES, {"desktop": "any"}, '.desktop: "any"'),
    "no sandbox any more": (BOXED, {"sandbox": None}, '.sandbox: nothing instead of {"read": ["/srv"]'),
    "more to read": (BOXED, {"sandbox": {**BOX, "read": ["/srv", "/"]}}, ".sandbox: "),
    "more to write": (BOXED, {"sandbox": {**BOX, "write": ["/srv"]}}, ".sandbox: "),
    "anything to write": (BOXED, {"sandbox": {**BOX, "write": "any"}}, ".sandbox: "),
    "a port more": (BOXED, {"sandbox": {**BOX, "connect": [443, 22]}}, ".sandbox: "),
    "more memory": (BOXED, {"sandbox": {**BOX, "memory": "1 GiB"}}, ".sandbox: "),
    "more memory by default": (BOXED, {"sandbox": "strict"}, '.sandbox: "strict" instead of '),
    "more processes": (BOXED, {"sandbox": {**BOX, "processes": "any"}}, ".sandbox: "),
    "a sandbox that is not required": (BOXED, {"sandbox": {**BOX, "required": False}}, ".sandbox: "),
    "an input as a sandbox": (BOXED, {"sandbox": "${input:x}"}, ".sandbox: "),
    "no secret any more": (FILES, {"secrets": {"API_TOKEN": False}}, ".secrets"),
    "changed tools may run": (FILES, {"pin": "off"}, '.pin: "off"'),
    "changed tools need not ask": ({**FILES, "pin": "ask"}, {"pin": "warn"}, '.pin: "warn" instead of "ask"'),
    "changed tools may be those of the program": ({**FILES, "pin": "ask"}, {"pin": None}, ".pin: nothing instead"),
    "not declared any more": ({**FILES, "secrets": {"MODE": True}}, {"secrets": None}, ".secrets"),
}


def changed(old: dict[str, Any] | None, change: dict[str, Any]) -> dict[str, Any]:
    """A configuration with a change; a field that becomes `None` is no longer there."""
    return {name: value for name, value in ((old or {}) | change).items() if value is not None}


@pytest.mark.parametrize(("old", "change", "line"), NEED_CONSENT.values(), ids=NEED_CONSENT)
def test_a_change_of_what_runs_or_asks_waits_and_is_shown_without_secrets(
    old: dict[str, Any] | None, change: dict[str, Any], line: str
) -> None:
    lines = waiting(old, changed(old, change))
    assert any(each.startswith(f"servers.s{line}") for each in lines), lines
    assert TOKEN not in repr(lines)


HARMLESS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": (FILES, {}),
    "disabled": (FILES, {"disabled": True}),
    "when it is started": (FILES, {"start": "on_call", "idle_stop": 60}),
    "started always again": ({**FILES, "start": "on_call"}, {"start": None}),
    "a forbidden tool more": (FILES, {"forbidden_tools": ["rm"]}),
    "a tool that asks": ({**FILES, "default_tool_meta": ALLOWS}, {"tool_meta": {"rm": {"auto_apply": False}}}),
    "no default any more": ({**FILES, "default_tool_meta": ALLOWS}, {"default_tool_meta": None}),
    "a sandbox": (FILES, {"sandbox": BOX}),
    "less to read": (BOXED, {"sandbox": {**BOX, "read": []}}),
    "what may be written may be read": (BOXED, {"sandbox": {**BOX, "read": ["/srv", "/var/x"]}}),
    "less memory, fewer processes": (BOXED, {"sandbox": {**BOX, "memory": 1000000, "processes": 8}}),
    "tags": (FILES, {"tool_meta": {"rm": {"tags": ["x"]}}}),
    "a mapper": (FILES, {"default_tool_meta": {"ret_object_mapper": {"a": "b"}}}),
    "timeouts": (REMOTE, {"timeout": 9}),
    "no script any more": ({**FILES, "vrl": "."}, {"vrl": None}),
    "changed tools ask": (FILES, {"pin": "ask"}),
    "changed tools are told": ({**FILES, "pin": "off"}, {"pin": "warn"}),
    "a secret declared": (FILES, {"secrets": {"MODE": True}}),
    "a field without a meaning": (FILES, {"comment": "hello"}),
}


@pytest.mark.parametrize(("old", "change"), HARMLESS.values(), ids=HARMLESS)
def test_a_change_that_only_restricts_or_describes_is_applied_at_once(
    old: dict[str, Any], change: dict[str, Any]
) -> None:
    assert waiting(old, changed(old, change)) == []


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
    shown = ("\\u202e", "[500 blanks]", "more characters", '; rm -rf /"]')
    assert [each for each in shown if each not in line] == []
