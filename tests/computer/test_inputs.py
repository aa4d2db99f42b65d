"""Where the values of inputs come from, what is kept of them, and that secrets are not seen on the way."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail, null

from a2c_smcp.computer.configuration.definitions import CommandFailed, InvalidInput, MissingInputs, UnknownInput
from a2c_smcp.computer.configuration.resolver import Inputs, argv_of, run
from a2c_smcp.files import PrivateFileUnusable
from a2c_smcp.mcp_host.config.servers import CommandInput, PickStringInput, PromptStringInput
from tests.computer.servers.paper_keyring import PaperKeyring
from tests.computer.supervised import is_alive
from tests.on_disk import mode_of, names_in
from tests.waiting import until

pytestmark = pytest.mark.covers("inputs-sources", "inputs-command")

SERVICE = "a2c-smcp"
HOST = PromptStringInput(id="host", description="Where it runs")
PASSWORD = PromptStringInput(id="db-password", description="Of the database", password=True)
REGION = PickStringInput.model_validate({"id": "region", "description": "", "options": ["eu", "us"]})


@pytest.fixture
def machine_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperKeyring]:
    monkeypatch.setenv("PAPER_KEYRING", str(tmp_path / "keyring.json"))
    yield from installed(PaperKeyring())


@pytest.fixture(params=[fail.Keyring, null.Keyring], ids=["none", "disabled"])
def no_keyring(request: pytest.FixtureRequest) -> Iterator[KeyringBackend]:
    yield from installed(request.param())


def installed(backend: Any) -> Iterator[Any]:
    before = keyring.get_keyring()
    keyring.set_keyring(backend)
    yield backend
    keyring.set_keyring(before)


def inputs(*definitions: Any, **options: Any) -> Inputs:
    return Inputs(definitions, **{"environ": {}, "keyring": False, **options})


def command(*argv: str, id_: str = "token", **more: Any) -> CommandInput:
    return CommandInput(id=id_, description="", command=" ".join(argv), **more)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-c", code)


async def value_of(source: Inputs, id_: str) -> Any:
    return (await source.resolve([id_], server="s")).values[id_]


# The order of sources


async def test_sources_are_asked_in_order(machine_keyring: PaperKeyring) -> None:
    definition = HOST.model_copy(update={"default": "default"})
    machine_keyring.set_password(SERVICE, "host", "keyring")
    options: dict[str, Any] = {"values": {"host": "explicit"}, "environ": {"A2C_INPUT_HOST": "environment"}}
    options |= {"keyring": True, "prompt": lambda _: "prompt"}
    without: dict[str, Any] = {"values": {}, "environ": {}, "keyring": False, "prompt": None}
    found = [await value_of(inputs(definition, **options), "host")]
    for name in options:
        options[name] = without[name]
        found.append(await value_of(inputs(definition, **options), "host"))
    assert found == ["explicit", "environment", "keyring", "prompt", "default"]
    assert await value_of(inputs(definition, prompt=lambda _: None), "host") == "default", "the owner has no answer"


@pytest.mark.parametrize(
    ("id_", "variable"),
    [("token", "A2C_INPUT_TOKEN"), ("github-token.2", "A2C_INPUT_GITHUB_TOKEN_2"), ("clé", "A2C_INPUT_CL_")],
)
async def test_the_variable_of_an_input_is_its_id_in_capitals(id_: str, variable: str) -> None:
    assert await value_of(inputs(PromptStringInput(id=id_), environ={variable: "given"}), id_) == "given"


async def test_the_variable_of_the_published_package_counts_if_there_is_no_other_and_one_input_only() -> None:
    source = inputs(PASSWORD, environ={"A2C_SMCP_db_password": "theirs"})
    assert await value_of(source, "db-password") == "theirs"
    both = {"A2C_SMCP_db_password": "theirs", "A2C_INPUT_DB_PASSWORD": "ours"}
    assert await value_of(inputs(PASSWORD, environ=both), "db-password") == "ours"
    source.define([PASSWORD, PASSWORD.model_copy(update={"id": "db_password"})])
    with pytest.raises(MissingInputs):
        await source.resolve(["db-password"], server="db")


async def test_an_empty_variable_is_no_value() -> None:
    with pytest.raises(MissingInputs):
        await value_of(inputs(HOST, environ={"A2C_INPUT_HOST": ""}), "host")


async def test_every_missing_input_is_listed_with_how_to_give_it() -> None:
    source = inputs(HOST, PASSWORD, REGION, command("true"), environ={"A2C_INPUT_REGION": "mars"})
    with pytest.raises(MissingInputs) as caught:
        await source.resolve(["host", "db-password", "region", "token"], server="db")
    lines = str(caught.value).splitlines()
    assert lines[0] == "server 'db' cannot start without these inputs:"
    told = {line.split(":")[0].strip(): line for line in lines[1:]}
    assert told.keys() == {"host", "db-password", "region", "token"} == set(caught.value.ids)
    said = {"A2C_INPUT_DB_PASSWORD": "db-password", "Of the database": "db-password", "'eu', 'us'": "region"}
    assert all(words in told[id_] for words, id_ in {**said, "nobody to ask": "token"}.items())
    assert "mars" not in str(caught.value)


@pytest.mark.covers("inputs-render")
async def test_an_input_without_a_definition_is_unknown_and_the_owner_is_not_asked() -> None:
    asked: list[Any] = []
    source = inputs(HOST, values={"other": "x"}, prompt=asked.append)
    with pytest.raises(UnknownInput, match=r"server 'db' uses 'nope', 'other'"):
        await source.resolve(["host", "other", "nope"], server="db")
    assert asked == []


# Asking


async def test_a_prompt_that_blocks_does_not_block_the_loop() -> None:
    go_on = threading.Event()
    asking = asyncio.create_task(value_of(inputs(HOST, prompt=lambda _: go_on.wait(5) and "answered"), "host"))
    await asyncio.sleep(0)
    go_on.set()
    assert await asking == "answered"


async def test_a_prompt_may_be_asynchronous_in_any_way() -> None:
    async def prompt(definition: Any) -> str:
        return str(definition.id)

    class Prompter:
        async def __call__(self, definition: Any) -> str:
            return str(definition.id)

    def started(definition: Any) -> asyncio.Task[str]:
        return asyncio.create_task(prompt(definition))

    for each in (prompt, Prompter(), lambda definition: prompt(definition), started):
        assert await value_of(inputs(HOST, prompt=each), "host") == "host"


async def test_the_approval_of_a_command_may_be_a_future_of_a_plain_function() -> None:
    def approve(*_: Any) -> asyncio.Future[bool]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(True)
        return answer

    assert await value_of(inputs(command("echo", "printed"), approve=approve), "token") == "printed"


async def test_two_servers_that_need_the_same_answer_ask_once_and_one_at_a_time() -> None:
    asked, open_questions = [], 0

    async def prompt(definition: Any) -> str:
        nonlocal open_questions
        open_questions += 1
        assert open_questions == 1
        asked.append(definition.id)
        await asyncio.sleep(0)
        open_questions -= 1
        return "x"

    source = inputs(HOST, PASSWORD, prompt=prompt)
    await asyncio.gather(*(source.resolve(["host", "db-password"], server=name) for name in "abc"))
    assert sorted(asked) == ["db-password", "host"]


async def test_an_error_of_a_prompt_reaches_the_caller() -> None:
    def prompt(_: Any) -> str:
        raise EOFError("no terminal")

    with pytest.raises(EOFError):
        await value_of(inputs(HOST, prompt=prompt), "host")


# The three kinds


async def test_a_picked_value_must_be_one_of_the_options() -> None:
    with pytest.raises(InvalidInput, match="'eu', 'us'"):
        await inputs(REGION).set("region", "mars")
    with pytest.raises(MissingInputs, match="the answer must be one of 'eu', 'us'"):
        await value_of(inputs(REGION, prompt=lambda _: "mars"), "region")
    assert await value_of(inputs(REGION, prompt=lambda _: "us"), "region") == "us"


@pytest.mark.parametrize(("id_", "value"), [("host", float("nan")), ("host", None), ("db-password", ["x"])])
async def test_explicit_values_keep_their_type_and_have_one(id_: str, value: Any) -> None:
    assert await value_of(inputs(HOST, values={"host": 8080}), "host") == 8080
    with pytest.raises(InvalidInput):
        await inputs(HOST, PASSWORD).set(id_, value)


@pytest.mark.covers("secrets-masked")
async def test_passwords_commands_and_whatever_the_keyring_holds_are_secrets(machine_keyring: PaperKeyring) -> None:
    machine_keyring.set_password(SERVICE, "region", "eu")
    given = {"host": "plain", "db-password": "hidden"}
    definitions = (HOST, PASSWORD, REGION, command("echo", "printed"))
    source = inputs(*definitions, values=given, approve=lambda *_: True, keyring=True)
    resolved = await source.resolve(["host", "db-password", "region", "token"], server="s")
    assert resolved.values == {"host": "plain", "db-password": "hidden", "region": "eu", "token": "printed"}
    assert resolved.secrets == {"hidden", "eu", "printed"}
    assert not any(value in repr(resolved) for value in resolved.values.values())


async def test_the_list_shows_sources_and_no_secret() -> None:
    password = PASSWORD.model_copy(update={"default": "d3fault"})
    source = inputs(HOST, password, REGION, command("x"), environ={"A2C_INPUT_REGION": "eu"})
    await source.set("host", "example.org")
    states = {state.id: (state.source, state.is_secret, state.value) for state in source.list()}
    plain = {"host": ("explicit", False, "example.org"), "region": ("environment", False, "eu")}
    assert states == {**plain, "db-password": ("default", True, None), "token": (None, True, None)}
    assert "d3fault" not in repr(source.list())


# Commands


def test_a_command_is_split_into_words_and_its_pairs_are_appended() -> None:
    argv = argv_of("op read 'a b' \"$HOME\" ; rm", {"vault": "main; ls", "field": "pass word"})
    assert argv == ("op", "read", "a b", "$HOME", ";", "rm", "--vault", "main; ls", "--field", "pass word")


async def test_no_shell_sees_a_command() -> None:
    source = inputs(command("echo", "$HOME", "`id`", ";", "ls", args={"a": "$(id)"}), approve=lambda *_: True)
    assert await value_of(source, "token") == "$HOME `id` ; ls --a $(id)"


@pytest.mark.parametrize("text", ["echo 'open", "   ", "''"])
async def test_a_command_that_is_none_is_a_clear_error(text: str) -> None:
    with pytest.raises(MissingInputs, match="its command"):
        await value_of(inputs(command(text), approve=lambda *_: True), "token")


async def test_a_command_is_shown_and_approved_the_first_time_for_its_exact_words(tmp_path: Path) -> None:
    shown: list[tuple[str, ...]] = []

    def approve(definition: CommandInput, argv: tuple[str, ...]) -> bool:
        shown.append(argv)
        return True

    source = inputs(command("echo", "one"), approve=approve)
    assert [await value_of(source, "token") for _ in range(3)] == ["one"] * 3
    source.define([command("echo", "two")])
    assert await value_of(source, "token") == "two"
    assert shown == [("echo", "one"), ("echo", "two")]


@pytest.mark.parametrize("answer", [False, None, "yes", 1])
async def test_a_command_runs_only_after_a_clear_yes(answer: object, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = inputs(command("touch", str(mark)), approve=lambda *_: answer)
    with pytest.raises(MissingInputs, match="not approved"):
        await value_of(source, "token")
    with pytest.raises(MissingInputs, match="nobody to ask"):
        await value_of(inputs(command("touch", str(mark))), "token")
    assert not mark.exists()


async def test_a_command_is_not_run_where_there_is_a_value_already() -> None:
    source = inputs(command("false"), environ={"A2C_INPUT_TOKEN": "given"})
    assert await value_of(source, "token") == "given"


@pytest.mark.parametrize(("printed", "value"), [("a\n", "a"), ("a\r\n", "a"), ("a\nb\n\n", "a\nb"), (" a ", " a ")])
async def test_the_newline_at_the_end_is_stripped(printed: str, value: str) -> None:
    code = f"import sys; sys.stdout.buffer.write({printed.encode()!r})"
    assert await run(python(code), environ=os.environ) == value


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; print('s3cret'); print('s3cret', file=sys.stderr); sys.exit(3)", "exit code 3"),
        ("pass", "printed nothing"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", "not UTF-8"),
        ("print('x' * 70000)", "more than 65536 bytes"),
        ("while True: print('x' * 70000)", "more than 65536 bytes"),
    ],
)
async def test_a_command_that_fails_says_how_and_quotes_nothing(code: str, told: str) -> None:
    with pytest.raises(CommandFailed, match=told) as caught:
        await run(python(code), environ=os.environ)
    assert "s3cret" not in str(caught.value)


async def test_a_command_may_print_exactly_the_limit_and_has_to_be_there() -> None:
    assert len(await run(python("print('x' * 65535)"), environ=os.environ)) == 65535
    with pytest.raises(CommandFailed, match="'a2c-no-such-program' cannot be started"):
        await run(("a2c-no-such-program",), environ=os.environ)


async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 60 & echo $$ $! > {pids}; wait"
    with pytest.raises(CommandFailed, match=r"longer than 0\.5 s"):
        await run(("sh", "-c", script), environ=os.environ, limit=0.5)
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    await until(lambda: not any(is_alive(pid) for pid in started))


@pytest.mark.covers("computer-cancel")
async def test_a_command_whose_run_is_cancelled_again_and_again_is_ended_before_the_run_ends(tmp_path: Path) -> None:
    started = tmp_path / "started"
    running = asyncio.create_task(
        run(("sh", "-c", f"echo $$ > {shlex.quote(str(started))}; sleep 60"), environ=os.environ)
    )
    await until(lambda: started.exists() and started.read_text())
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_command_does_not_see_our_credentials() -> None:
    code = "import os; print(sorted(name for name in os.environ if name.startswith('A2C_')))"
    program = f"""
import asyncio, json
from a2c_smcp.computer.configuration.resolver import Inputs
from a2c_smcp.mcp_host.config.servers import CommandInput
definition = CommandInput(id="token", command={shlex.join(python(code))!r})
source = Inputs([definition], approve=lambda *_: True, keyring=False)
print(asyncio.run(source.resolve(["token"], server="s")).values["token"])
"""
    environ = {**os.environ, "A2C_INPUT_OTHER": "x", "A2C_API_KEY": "x", "A2C_URL": "x"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['A2C_URL']"


# Keeping


async def test_plain_values_are_kept_in_a_file_that_only_the_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "inputs.json"
    source = inputs(HOST, REGION, store=path)
    assert await source.set("host", "example.org", keep=True) == "file"
    assert await source.set("region", "eu") == "memory"
    assert (mode_of(path), mode_of(path.parent), names_in(path.parent)) == (0o600, 0o700, ["inputs.json"])
    assert json.loads(path.read_text()) == {"host": "example.org"}
    assert await value_of(inputs(HOST, store=path), "host") == "example.org"
    assert await value_of(inputs(HOST, store=path, values={"host": "other"}), "host") == "other"
    assert await source.clear("host")
    assert json.loads(path.read_text()) == {}


async def test_secrets_are_kept_in_the_keyring_and_never_in_the_file(
    machine_keyring: PaperKeyring, tmp_path: Path
) -> None:
    path = tmp_path / "inputs.json"
    source = inputs(HOST, PASSWORD, store=path, keyring=True)
    assert await source.set("db-password", "hidden", keep=True) == "keyring"
    await source.set("host", "example.org", keep=True)
    assert machine_keyring.get_password(SERVICE, "db-password") == "hidden"
    assert "hidden" not in path.read_text()
    again = inputs(HOST, PASSWORD, store=path, keyring=True)
    assert await value_of(again, "db-password") == "hidden"
    assert await again.clear("db-password")
    assert json.loads((tmp_path / "keyring.json").read_text()) == {}


@pytest.mark.usefixtures("no_keyring")
async def test_without_a_keyring_a_secret_stays_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    for enabled in (False, True):
        source = inputs(PASSWORD, store=path, keyring=enabled)
        assert await source.set("db-password", "hidden", keep=True) == "memory"
        assert await value_of(source, "db-password") == "hidden"
    assert not path.exists()


async def test_a_kept_value_whose_input_has_become_a_secret_is_not_used_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    path.write_text('{"db-password": "old", "host": "a"}')
    source = inputs(store=path)
    source.define([PASSWORD, HOST])
    for each in (inputs(PASSWORD, store=path), source):
        with pytest.raises(MissingInputs):
            await value_of(each, "db-password")
    await source.set("host", "b", keep=True)
    assert json.loads(path.read_text()) == {"host": "b"}


@pytest.mark.parametrize("content", ["", "[1]", "{", "\ud800"])
def test_a_file_that_cannot_be_read_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(PrivateFileUnusable, match=r"inputs\.json"):
        inputs(HOST, store=path)


def test_a_program_without_the_keyring_extra_goes_on_without() -> None:
    program = """
import asyncio, sys
sys.modules["keyring"] = None
from a2c_smcp.computer.configuration.resolver import Inputs
from a2c_smcp.mcp_host.config.servers import PromptStringInput
source = Inputs([PromptStringInput(id="x", default="d", password=True)], environ={})
print(asyncio.run(source.resolve(["x"], server="s")).values, asyncio.run(source.set("x", "v", keep=True)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'x': 'd'} memory"


# Changes


async def test_listeners_hear_which_inputs_changed_and_nothing_else() -> None:
    told: list[frozenset[str]] = []
    source = inputs(HOST, REGION, prompt=lambda _: "asked")
    stop = source.subscribe(told.append)
    for value in ("a", "a", "b"):
        await source.set("host", value)
    for _ in range(2):
        await source.clear("host")
    assert told == [{"host"}] * 3
    await value_of(source, "host")
    await source.set("host", "asked")
    assert told == [{"host"}] * 3
    source.define([HOST.model_copy(update={"default": "x"}), REGION, PASSWORD])
    assert told[3:] == [{"host", "db-password"}]
    stop()
    await source.set("host", "c")
    assert len(told) == 4


async def test_only_defined_inputs_can_be_set_or_cleared() -> None:
    source = inputs(HOST)
    with pytest.raises(UnknownInput, match="'nope'"):
        await source.set("nope", "x")
    with pytest.raises(UnknownInput, match="'nope'"):
        await source.clear("nope")
