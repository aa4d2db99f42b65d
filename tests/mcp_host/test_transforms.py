"""Mappers and scripts that change the result of a tool, and the limits that make them harmless."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vrl_python import VRLRuntime

from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host import processes
from a2c_smcp.mcp_host.processes.worker import Worker, WorkerDied, WorkerTooSlow, worker_command
from a2c_smcp.mcp_host.transforms import FORBIDDEN, Mapper, Transform, TransformFailed, VRLScript, forbidden_calls
from tests.computer.pace import within
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("transform-mapper", "transform-vrl")

RESULT: dict[str, Any] = {
    "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "wörld"}],
    "structuredContent": {"user": {"name": "Ann"}, "tags": ["a", "b"], "big": 2**70},
    "isError": False,
    "_meta": {"own": {"x": 1}},
}
NO_HARM = '.x = "no harm"'
FOREVER = """
for_each(split!(.text, "")) -> |_a, x| { for_each(split!(.text, "")) -> |_b, y| { .z = x + y } }
"""
LONG = {"text": "x" * 20_000}
EXPLODES = 'x = "aaaaaaaaaaaaaaaa"; ' + "x = x + x; " * 26 + ".x = length(x)"


@pytest.fixture
async def script() -> AsyncIterator[Callable[[str], Awaitable[VRLScript]]]:
    """A script that is compiled, and closed when the test is over."""
    async with AsyncExitStack() as stack:

        async def open_script(source: str) -> VRLScript:
            opened = VRLScript(source)
            stack.push_async_callback(opened.close)
            await opened.compile()
            return opened

        yield open_script


async def applied(transform: Transform, result: dict[str, Any] | None = None) -> dict[str, Any]:
    """The `_meta` of a result after its transform, the rest of which must be as it was."""
    result = RESULT if result is None else result
    before = copy.deepcopy(result)
    after = await transform.apply(result, tool_name="greet", parameters={"to": "Ann"})
    assert result == before
    meta: dict[str, Any] = after.get("_meta", {})
    own = before.get("_meta", {})
    assert {**after, "_meta": own} == {**before, "_meta": own}
    return meta


# Mapping


async def test_a_mapper_builds_one_object_beside_the_result() -> None:
    fields = {"name": "structuredContent.user.name", "text": "join(' ', content[].text)", "none": "nowhere.at[0]"}
    meta = await applied(Transform(mapper=Mapper({**fields, "n": "structuredContent.big"})))
    assert meta.keys() == {"own", "a2c_ret_object"}
    assert json.loads(meta["a2c_ret_object"]) == {"name": "Ann", "text": "hello wörld", "none": None, "n": 2**70}


@cases(
    "expression, told",
    *((wrong, "not a JMESPath expression") for wrong in ("a[", "", "a ||", "(" * 5000)),
    ("a.nope(b)", r"nope\(\): no such function"),
    ("nope(a)", r"nope\(\): no such function"),
    ("a[?b == length()]", r"length\(\): takes 1 arguments, not 0"),
    ("[length(a, b)]", r"length\(\): takes 1 arguments, not 2"),
    ("map(&not_null(), @)", r"not_null\(\): takes 1 arguments or more, not 0"),
    *((wrong, "must be a JMESPath expression") for wrong in (7, None, {"a": "b"})),
)
def test_an_expression_that_can_never_work_is_refused_at_load(expression: object, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"ret_object_mapper\.field: .*{told}"):
        Mapper({"good": "a.b", "field": expression})


@pytest.mark.parametrize("expression", ["length(isError)", "sum(content)", "&content", "to_number('nan')", "abs('x')"])
async def test_a_mapper_that_fails_leaves_the_result_and_says_so(expression: str) -> None:
    spoofed = {**RESULT, "_meta": {"own": {"x": 1}, "a2c_ret_object": "spoofed"}}
    after = await Transform(mapper=Mapper({"field": expression})).apply(spoofed, tool_name="t", parameters={})
    assert after["_meta"].keys() == {"own", "a2c_ret_object_error"}
    assert "ret_object_mapper" in after["_meta"]["a2c_ret_object_error"]
    assert after["content"] == RESULT["content"]


async def test_a_failing_field_is_quoted_briefly() -> None:
    meta = await applied(Transform(mapper=Mapper({"field": "length(isError)"})))
    assert meta["a2c_ret_object_error"].startswith("ret_object_mapper.field: ")
    huge = {"content": [], "isError": {"x": "y" * 10_000}}
    after = await Transform(mapper=Mapper({"field": "abs(isError)"})).apply(huge, tool_name="t", parameters={})
    assert len(after["_meta"]["a2c_ret_object_error"]) <= 300


async def test_without_mapper_and_script_nothing_happens() -> None:
    assert await Transform().apply(RESULT, tool_name="t", parameters={}) is RESULT


# Scripts


async def test_a_script_sees_the_result_the_tool_and_its_parameters(script: Callable[..., Any]) -> None:
    source = """
    .greeting = upcase!(.content[0].text) + " " + string!(.parameters.to) + " from " + string!(.tool_name)
    del(.content); del(.structuredContent); del(._meta)
    """
    meta = await applied(Transform(script=await script(source)))
    assert meta.keys() == {"own", "a2c_vrl_transformed"}
    call = {"isError": False, "parameters": {"to": "Ann"}, "tool_name": "greet"}
    assert json.loads(meta["a2c_vrl_transformed"]) == {"greeting": "HELLO Ann from greet", **call}


async def test_mapper_and_script_work_side_by_side_on_the_same_result(script: Callable[..., Any]) -> None:
    source = 'if exists(._meta.a2c_ret_object) { abort }\n. = {"n": length!(.content)}'
    spoofed = {"content": [], "_meta": {"a2c_vrl_error": "spoofed"}}
    transform = Transform(mapper=Mapper({"n": "length(content)"}), script=await script(source))
    after = await transform.apply(spoofed, tool_name="t", parameters={})
    assert after["_meta"] == {"a2c_ret_object": '{"n": 0}', "a2c_vrl_transformed": '{"n": 0}'}


async def test_values_that_vrl_cannot_hold_are_converted(script: Callable[..., Any]) -> None:
    plain = {"null": None, "nul": "\0"}
    outcome = await (await script(NO_HARM)).run({"half": "\ud800", "big": 2**70, **plain})
    assert json.loads(outcome) == {"half": "?", "big": pytest.approx(2.0**70), **plain, "x": "no harm"}


KILLED = "compiling it (was ended by signal|ended with|took longer)"
DEEP = ".x = " + "(" * 20_000 + "1" + ")" * 20_000
NESTED = ".x = " + 'map_values({"a": 1}) -> |v| { ' * 40 + "v" + " }" * 40


@cases(
    "source, told",
    (".x =", "does not compile:.*unexpected end of program"),
    (".x = parse_json(.a)", "does not compile:.*unhandled fallible assignment"),
    (".x = no_such_function(1)", "does not compile:.*undefined function"),
    (DEEP, KILLED),
    (NESTED, KILLED),
    ids=["no end", "fallible", "unknown", "it overflows the stack of the compiler", "it takes it exponential time"],
)
async def test_a_script_that_does_not_compile_is_refused_at_load_and_kills_nothing_else(source: str, told: str) -> None:
    broken = VRLScript(source)
    with pytest.raises(ConfigError, match=f"(?s)vrl: {told}") as caught:
        await broken.compile()
    await broken.close()
    assert "vrl.dev" not in str(caught.value)


@cases(
    "source, told",
    (".x = parse_json!(.tool_name)", 'function call error for "parse_json"'),
    ("abort", "aborted"),
    ('. = "text"; abort "enough"', "enough"),
)
async def test_a_script_that_fails_leaves_the_result_and_says_so(
    source: str, told: str, script: Callable[..., Any]
) -> None:
    meta = await applied(Transform(script=await script(source)))
    assert meta.keys() == {"own", "a2c_vrl_error"}
    assert re.fullmatch(f"vrl: .*{re.escape(told)}.*", meta["a2c_vrl_error"])


async def test_a_script_that_hangs_is_stopped_while_the_loop_goes_on_and_the_next_run_works(
    script: Callable[..., Any],
) -> None:
    hanging, turns, start = await script(FOREVER), 0, time.monotonic()
    with within(2.5):
        running = asyncio.create_task(hanging.run(LONG))
        while not running.done():
            await asyncio.sleep(0.005)
            turns += 1
        with pytest.raises(TransformFailed, match="the script took longer than 1 s"):
            await running
    assert (time.monotonic() - start > 0.9, turns > 20) == (True, True)
    assert json.loads(await hanging.run({"text": "ab"})).keys() == {"text", "z"}


async def test_a_script_that_wants_too_much_memory_ends_alone(script: Callable[..., Any]) -> None:
    greedy = await script(f"if .go == true {{ {EXPLODES} }}")
    with pytest.raises(TransformFailed, match=r"the script (was ended by signal|ended with exit code)"):
        await greedy.run({"go": True})
    assert json.loads(await greedy.run({"go": False})) == {"go": False}


async def test_a_result_that_is_too_large_is_not_given_to_a_script(script: Callable[..., Any]) -> None:
    meta = await applied(Transform(script=await script(NO_HARM)), {"content": [{"type": "text", "text": "x" * 2**22}]})
    assert "more than 4194304" in meta["a2c_vrl_error"]


async def test_a_result_that_nests_too_deeply_is_an_error_of_the_script_only(script: Callable[..., Any]) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TransformFailed, match="not JSON"):
        await (await script(NO_HARM)).run({"deep": deep})


# What scripts may not call


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_functions_that_reach_beyond_the_result_are_refused_at_load(name: str) -> None:
    for source in (f".x = {name}(.a)", f".x = {name}!(.a)", f'x = "a" # b\n{name}! ("x")', f".a.b[{name}(1)]"):
        with pytest.raises(ConfigError, match=f"vrl: must not call {name}"):
            VRLScript(source)


@cases(
    "source",
    '.x = "get_hostname()"',
    '.x = "\\"get_hostname()"',
    ".x = s'get_hostname!()'",
    ".x = s'it\\'s get_hostname!()'",
    ".x = r'get_hostname!\\(\\)'",
    ".x = 1 # get_hostname()\n# http_request()",
    ".get_hostname = 1\n.x = .get_hostname",
    "get_hostname = 1\n.x = get_hostname + 2",
    '. = {"get_env_var": 1}',
)
def test_names_of_forbidden_functions_are_allowed_in_strings_comments_and_fields(source: str) -> None:
    assert forbidden_calls(source) == set()
    assert VRLRuntime.check_syntax(source) is None


@cases(
    "source",
    '.x = "a" + get_hostname!() # "',
    '.x = "\\\\" + get_hostname!() + "\\\\"',
    ".x = s'\\\\' + get_hostname!() + s'\\\\'",
    "s = 1\n.x = get_hostname!() #'",
    '# "\n.x = get_hostname!() # "',
    ".x = r'\"' == r'a' || get_hostname!() == \"\"",
    '.x = [1.5, get_hostname!(), "]"]',
    "if true { get_hostname!() }",
    '.x = "{{ a }}" + get_hostname!()',
)
def test_strings_and_comments_do_not_hide_a_call(source: str) -> None:
    assert forbidden_calls(source) == {"get_hostname"}


FRAGMENTS = [
    '"', "'", "s'", "r'", "t'", "\\", "#", "\n", " ", "get_hostname", "get_hostname!()", "get_hostname()", ".x = ",
    "x = ", "1", "1.5", "-5", "_", "@", ".", "(", ")", "{", "}", "!", "=", "a", "s", "r", '"a"', "s'a'", ";", "??",
    '\\"', "\\'", "{{", "}}", "5s", "-5s", "if true {", "+", "\\\\", "é", "\r",
]  # fmt: skip


def complaint(source: str) -> object:
    """What the compiler has against a source. Some escapes make it panic, with an exception that is no `Exception`."""
    try:
        return VRLRuntime.check_syntax(source)
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        return panic


@settings(max_examples=400)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_calls_are_found_exactly_where_the_compiler_finds_them(fragments: list[str]) -> None:
    """With a name that no function has, a call is what the compiler complains of and anything else is not."""
    source = ".x = " + "".join(fragments)
    if complaint(source) is None:
        renamed = complaint(source.replace("get_hostname", "unheard_of_"))
        assert bool(forbidden_calls(source)) == (renamed is not None)


def test_a_script_without_its_extra_says_what_to_install() -> None:
    program = f"""
import sys
sys.modules["vrl_python"] = None
from a2c_smcp.mcp_host.transforms import VRLScript
VRLScript({NO_HARM!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"need the extra `vrl`: .*pip install .+\[vrl\]", done.stderr)


# The process that runs them


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    program = Path(processes.__file__).with_name("vrl_worker.py")
    worker = Worker(worker_command(program))
    yield worker
    await worker.close()


def request(source: str, event: dict[str, Any] | None = None) -> bytes:
    return json.dumps([source] if event is None else [source, event]).encode()


async def test_one_process_serves_many_runs_of_many_scripts(worker: Worker) -> None:
    pids = set()
    for number in range(20):
        assert await worker.ask(request(f".n = {number % 2}", {}), limit=5) == b'ok\n{"n": %d}' % (number % 2)
        pids.add(worker.pid)
    assert len(pids) == 1


async def test_the_process_can_reach_neither_environment_nor_files_nor_network(worker: Worker, tmp_path: Path) -> None:
    secret = tmp_path / "schema.json"
    secret.write_text("{}")
    sources = {
        '.x = get_env_var!("PATH")': b"environment variable not found",
        f'.x = validate_json_schema!("1", "{secret}")': b"",
        '.x = http_request!("http://127.0.0.1:1/")': b"",
        '.x = dns_lookup!("localhost")': b"",
    }
    for source, told in sources.items():
        try:
            answer = await worker.ask(request(source, {}), limit=5)
        except WorkerDied:
            continue
        assert answer.startswith(b"failed\n")
        assert told in answer


async def test_a_process_that_was_killed_is_replaced(worker: Worker) -> None:
    assert await worker.ask(request(NO_HARM, {}), limit=5)
    first = worker.pid
    assert first is not None
    os.kill(first, 9)
    with suppress(WorkerDied):  # unless it is known already
        await worker.ask(request(NO_HARM, {}), limit=5)
    assert await worker.ask(request(NO_HARM, {}), limit=5) == b'ok\n{"x": "no harm"}'
    assert worker.pid != first


async def test_the_answer_to_a_cancelled_run_goes_to_no_other(worker: Worker) -> None:
    await worker.ask(request(NO_HARM), limit=5)
    running = asyncio.create_task(worker.ask(request(FOREVER, LONG), limit=5))
    waiting = asyncio.create_task(worker.ask(request(NO_HARM, {}), limit=5))
    await asyncio.sleep(0)
    running.cancel()
    assert await waiting == b'ok\n{"x": "no harm"}'
    assert running.cancelled()


async def test_a_process_ends_when_it_is_closed_and_when_its_owner_is_gone(worker: Worker) -> None:
    await worker.ask(request(NO_HARM), limit=5)
    pid = worker.pid
    await worker.close()
    assert worker.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
    with pytest.raises(WorkerTooSlow):
        await worker.ask(request(FOREVER, LONG), limit=0.2)
    assert worker.pid is None


async def test_a_program_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(WorkerDied, match="could not be started"):
        await Worker(["/no/such/program"]).ask(b"", limit=1)
