"""Sandboxes of stdio servers: what they allow, what is told of them, and what is possible on which machine."""

from __future__ import annotations

import logging
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.sandbox import SandboxSettings, bytes_of
from a2c_smcp.mcp_host.config.servers import StdioConfig, parse_server, source, unknown_fields
from a2c_smcp.mcp_host.failures import NotSandboxed, ServerGone
from a2c_smcp.mcp_host.processes.plan import Possible, RefusedPaths, Sandbox, planned, possible
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import SERVERS, eventually, managed, session, start_and_stop, text_of
from tests.mcp_host.sandboxed import burglar, sandboxed
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("sandbox")
linux_only = pytest.mark.skipif(not possible().files, reason="this kernel has no Landlock that covers files")

NEWEST, UBUNTU, OLDEST = Possible(7, True), Possible(4, True), Possible(1, True)
NONE, MAC = Possible(0, True), Possible(0, False, is_linux=False)


def stdio(sandbox: Any) -> StdioConfig:
    config = parse_server({"command": "x", "sandbox": sandbox}, "s")
    assert isinstance(config, StdioConfig)
    return config


def plan(can: Possible = NEWEST, cwd: str = "/", **fields: Any) -> Sandbox:
    process = {"command": sys.executable, "args": [], "env": {"HOME": cwd}}
    process = {name: fields.pop(name, default) for name, default in process.items()}
    return planned(SandboxSettings(**fields), **process, configured={}, cwd=cwd, can=can)


# Configuration


def test_strict_is_an_object_without_fields() -> None:
    assert stdio("strict").sandbox == stdio({}).sandbox == SandboxSettings()
    assert stdio(None).sandbox is None


def test_a_sandbox_among_the_parameters_counts() -> None:
    config: Any = parse_server({"type": "stdio", "server_parameters": {"command": "x", "sandbox": "strict"}}, "s")
    assert (config.sandbox, unknown_fields(config)) == (SandboxSettings(), [])


@cases(
    "sandbox, fault",
    ("lax", 'sandbox: must be "strict" or an object'),
    (True, 'sandbox: must be "strict" or an object'),
    ([], "sandbox: must be an object"),
    ({"read": "/srv"}, "sandbox.read: must be a list of paths"),
    ({"write": [""]}, "sandbox.write: must be a list of paths"),
    ({"connect": [0]}, "sandbox.connect: must be a list of TCP ports, 1 to 65535"),
    ({"connect": ["udp"]}, "sandbox.connect: must be a list of TCP ports"),
    ({"memory": "much"}, "sandbox.memory: must be a number of bytes above zero"),
    ({"memory": 0}, "sandbox.memory: must be a number of bytes above zero"),
    ({"processes": 0}, "sandbox.processes: must be a number of processes above zero"),
    ({"required": 1}, "sandbox.required: must be true or false"),
)
def test_a_fault_is_named_with_its_field(sandbox: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        stdio(sandbox)
    assert fault in str(raised.value)


def test_only_a_server_over_stdio_can_be_in_a_sandbox() -> None:
    with pytest.raises(ConfigError, match="only a server over stdio can be in a sandbox"):
        parse_server({"url": "https://example.com/mcp", "sandbox": "strict"}, "s")


def test_inputs_may_stand_for_every_value() -> None:
    given = {"read": ["${input:a}/x"], "connect": ["${input:b}"], "memory": "${input:c}", "required": "${input:d}"}
    assert {name: source(stdio(given))["sandbox"][name] for name in given} == given
    assert source(stdio("${input:all}"))["sandbox"] == "${input:all}"
    filled = stdio({"connect": ["443"], "memory": "512 MiB", "processes": "8", "required": "false"}).sandbox
    assert filled == SandboxSettings(connect=[443], memory="512 MiB", processes=8, required=False)


SIZES = {5: 5, "5": 5, "512 MiB": 512 << 20, "512m": 512 << 20, "1.5 GiB": 3 << 29, "2 GB": 2 * 10**9, "x": None}


@pytest.mark.parametrize(("size", "expected"), SIZES.items())
def test_sizes_have_units(size: int | str, expected: int | None) -> None:
    assert bytes_of(size) == expected


# What is allowed


def test_paths_begin_at_home_or_at_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    made = plan(cwd=str(tmp_path), read=["~/notes", "/usr"], write=["notes", "."])
    assert {("read", f"{tmp_path}/notes"), ("read", "/usr"), ("write", f"{tmp_path}/notes")} <= set(made.files)
    assert made.allows("write", str(tmp_path / "notes" / "new"))
    assert not made.allows("write", "/usr/new")


@pytest.mark.parametrize("field", ["read", "write"])
def test_a_missing_path_is_named_with_its_field(field: str, tmp_path: Path) -> None:
    with pytest.raises(NotSandboxed, match=rf"sandbox.{field}: '~/nowhere' does not exist; make it, or take it out"):
        plan(cwd=str(tmp_path), **{field: ["~/nowhere"]})


def test_of_the_home_folder_only_programs_can_be_read(tmp_path: Path) -> None:
    private = (".ssh", ".config", ".local/share/keyrings", "Documents")
    for folder in (*private, ".local/share/uv/tools", ".nvm", ".npm/_npx"):
        (tmp_path / folder).mkdir(parents=True)
    made = plan(cwd=str(tmp_path))
    readable = {str(Path(path).relative_to(tmp_path)) for _, path in made.files if Path(path).is_relative_to(tmp_path)}
    assert readable == {".local/share/uv", ".nvm", ".npm/_npx"}
    assert not [path for kind, path in made.files if kind == "write"]


def test_a_home_folder_below_a_folder_of_the_system_is_not_readable_with_it() -> None:
    assert ("read", "/usr") not in plan(cwd="/usr/share").files


def test_a_script_brings_its_package_and_nothing_above_it(tmp_path: Path) -> None:
    package = tmp_path / "home" / "work" / "server"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text("{}")
    (package.parent / "node_modules").mkdir()
    script = package / "dist" / "index.js"
    script.write_text("")
    made = plan(command="/bin/sh", args=["--flag", str(script)], env={"HOME": str(tmp_path / "home")})
    assert made.allows("read", str(package / "other.js"))
    assert made.allows("read", str(package.parent / "node_modules" / "x"))
    assert not made.allows("read", str(package.parent / "secret.txt"))


def test_what_a_server_may_write_allows_it_no_more_when_it_starts_again(tmp_path: Path) -> None:
    own, private = tmp_path / "home" / "own", tmp_path / "home" / "private"
    for folder in (own / ".venv" / "bin", own / "lib", private / "bin"):
        folder.mkdir(parents=True)
    (private / "package.json").write_text("{}")
    (private / "bin" / "python").write_text("")
    (own / ".venv" / "pyvenv.cfg").write_text(f"home = {private / 'bin'}\n")
    (own / ".venv" / "bin" / "python").symlink_to(private / "bin" / "python")
    (own / "script.py").symlink_to(private / "bin" / "python")
    (own / "packages").symlink_to(private)
    (tmp_path / "way").symlink_to(own / "packages")

    def made(*write: Path) -> Sandbox:
        env = {"HOME": str(tmp_path / "home"), "PYTHONPATH": f"{own / 'packages'}:{tmp_path / 'way'}"}
        command, args = str(own / ".venv" / "bin" / "python"), [str(own / "script.py")]
        return plan(command=command, args=args, env=env, write=[str(path) for path in write])

    assert made().allows("read", str(private / "secret.txt")), "it is a program that its owner has put there"
    assert not made(own).allows("read", str(private / "secret.txt"))
    (warning,) = made(own).obstacles
    assert f"leads to {private / 'bin' / 'python'} by way of a folder that it may write to: name" in warning
    assert not made(tmp_path / "home" / "own" / ".." / "own").allows("read", str(private / "bin" / "python"))
    for field in ("read", "write"):
        with pytest.raises(NotSandboxed, match=rf"sandbox.{field}: .* is a link that the server may have made"):
            plan(cwd=str(own), **{"write": ["."], field: [".", "packages"]})
        with pytest.raises(NotSandboxed, match="name where it leads"):
            plan(cwd=str(tmp_path), **{"write": ["home/own"], field: ["home/own", "way"]})
    assert plan(cwd=str(own), read=["packages"]).allows("read", str(private / "secret.txt"))


@linux_only
async def test_what_is_allowed_works(tmp_path: Path) -> None:
    read, write = tmp_path / "read", tmp_path / "write"
    for folder in (read, write):
        folder.mkdir()
        (folder / "file").write_text("content")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with burglar({"read": [str(read)], "write": ["write"], "connect": [port]}, cwd=str(tmp_path)) as one:
            assert await one.tries(f"found = open({str(read / 'file')!r}).read()") == "content"
            assert (await one.tries(f"open({str(read / 'file')!r}, 'w')")).startswith("PermissionError")
            work = """
                import os, subprocess
                os.mkdir("write/new")
                open("write/new/one", "w").write("x" * 10)
                os.truncate("write/new/one", 3)
                os.rename("write/new/one", "write/two")
                os.link("write/two", "write/three")
                os.symlink("two", "write/four")
                os.rmdir("write/new")
                subprocess.run(["sh", "-c", "cat write/two > write/five"], check=True)
                found = open("write/five").read()
            """
            assert await one.tries(work) == "xxx"
            assert await one.tries(f"import socket; socket.create_connection(('127.0.0.1', {port}))") == "done"
            assert await one.tries("import socket; socket.socket(2, 2)") == "done"


@linux_only
async def test_any_lifts_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    everything = dict.fromkeys(("read", "write", "connect", "memory", "processes"), "any")
    async with burglar(everything) as one:
        assert await one.tries(f"open({str(file)!r}, 'a').write('s'); found = open({str(file)!r}).read()") == "contents"
        assert await one.tries("import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()") == "done"
        assert await one.tries("import socket; socket.socket(1, 1)") == "done"


@linux_only
async def test_a_server_on_the_sdk_works_under_strict() -> None:
    config = parse_server(
        {"command": sys.executable, "args": [str(SERVERS / "sdk.py"), "stdio"], "sandbox": "strict"}, "s"
    )
    async with session(config) as one:
        assert text_of(await one.call_tool(ToolRequest("add", {"a": 2, "b": 3}, 60))) == "5"
        assert one.warnings == []


# What is told


@linux_only
async def test_what_a_server_was_refused_is_in_the_log_and_in_its_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, shared = tmp_path / "token-of-ann", tmp_path / "shared"
    secret.write_text("x")
    shared.mkdir()
    with caplog.at_level(logging.WARNING, "a2c_smcp.mcp_host.processes.plan"):
        async with burglar({"read": [str(shared)]}) as one:
            said = f"import sys; print('EACCES: permission denied, open {shared}', file=sys.stderr)"
            for code in (f"open({str(secret)!r})", said, f"open({str(shared / 'new')!r}, 'w')"):
                await one.tries(code)
            await eventually(lambda: len(one.session.warnings) == 3)
            wanted = one.session.warnings
    assert f'it seems to want to read "{secret}", which its sandbox refuses (sandbox.read)' in wanted
    for path in (shared, shared / "new"):
        assert f'it seems to want to write "{path}", which its sandbox refuses (sandbox.write)' in wanted
    assert sorted(each.message for each in caplog.records) == sorted(f"burglar: sandbox: {each}" for each in wanted)


@linux_only
async def test_what_keeps_a_server_from_starting_is_in_the_log_once_though_it_is_started_in_two_ways(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that ends at the probe of the newer protocol is started the older way."""
    program, runs, private = tmp_path / "program", tmp_path / "runs", tmp_path / "private"
    runs.touch()
    private.touch()
    program.write_text(f"#!/bin/sh\necho run >> {runs}\ncat {private}\nexit 1\n")
    program.chmod(0o700)
    config = parse_server({"command": str(program), "sandbox": {"write": [str(runs)]}}, "weather")
    with pytest.raises(ServerGone):
        await start_and_stop(config)
    assert runs.read_text() == "run\n" * 2
    [warning] = [each.message for each in caplog.records if each.name.startswith("a2c_smcp.mcp_host.processes.plan")]
    assert warning.startswith(f'weather: sandbox: it seems to want to read "{private}')


def test_a_server_cannot_fill_the_log_and_words_that_look_like_paths_are_not_logged(
    tmp_path: Path, caplog: Any
) -> None:
    for number in range(50):
        (tmp_path / str(number)).write_text("")
    refused = RefusedPaths("s", plan())
    refused.read(b"nothing of this: /etc/shadow\n")
    refused.read(b"Permission denied: '/no/such/file'\nEACCES: /user may not\nPermission denied / nothing\n")
    assert refused.warnings == []
    refused.read("\n".join(f"Permission denied: '{tmp_path}/{number}'" for number in range(50)).encode())
    assert len(refused.warnings) == len(caplog.records) == 20


@linux_only
async def test_a_sandbox_that_cannot_be_made_fails_once_with_the_reason() -> None:
    async with managed(sandboxed({"read": ["/no/such/folder"]})) as (manager, _, _events):
        status = manager.status()["burglar"]
    assert (status.state, status.starts) == ("failed", 1)
    assert "MCP server cannot be in its sandbox: sandbox.read: '/no/such/folder' does not exist" in status.reason


@linux_only
@pytest.mark.covers("sandbox-git")
async def test_git_works_in_a_sandbox_that_refuses_its_configuration(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".config" / "git").mkdir(parents=True)
    work.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ann\n")
    (home / ".config" / "git" / "config").write_text("[user]\n\temail = ann@example.com\n")
    system = tmp_path / "gitconfig"
    system.write_text("[core]\n\tabbrev = 12\n")
    git = """
        import subprocess, tempfile
        done = subprocess.run(["git", "config", "--get", "user.name"], capture_output=True, text=True)
        made = subprocess.run(["git", "init", "-q", "-b", "main", tempfile.mkdtemp()], capture_output=True, text=True)
        found = done.stdout.strip(), done.stderr, made.returncode, made.stderr
    """
    env = {"HOME": str(home), "GIT_CONFIG_SYSTEM": str(system)}
    async with burglar({"write": [str(work)]}, cwd=str(work), env=env) as one:
        assert await one.tries(git) == "('', '', 0, '')"
    async with burglar({"write": [str(work)], "read": [str(home / ".gitconfig")]}, cwd=str(work), env=env) as one:
        assert await one.tries(git) == "('Ann', '', 0, '')"
    own = {**env, "GIT_CONFIG_GLOBAL": str(work / "own")}
    (work / "own").write_text("[user]\n\tname = Bob\n")
    async with burglar({"write": [str(work)]}, cwd=str(work), env=own) as one:
        assert await one.tries(git) == "('Bob', '', 0, '')"


def test_git_reads_its_configuration_where_the_sandbox_allows_it(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").touch()
    assert "GIT_CONFIG_GLOBAL" in plan(env={"HOME": str(tmp_path)}).environment
    for box in ({"read": ["~/.gitconfig", "/etc"]}, {"read": "any"}):
        assert "GIT_CONFIG_GLOBAL" not in plan(env={"HOME": str(tmp_path)}, **box).environment


NPX = f"""#!/bin/sh
mkdir -p "$HOME/.npm/_cacache/tmp" || exit 243
exec "{sys.executable}" "$@"
"""


@linux_only
@pytest.mark.covers("sandbox-faults")
async def test_a_program_that_its_sandbox_excludes_fails_once_with_the_remedy(tmp_path: Path) -> None:
    npx = tmp_path / "bin" / "npx"
    npx.parent.mkdir()
    (tmp_path / ".npm").mkdir()
    npx.write_text(NPX)
    npx.chmod(0o755)
    server = {
        "name": "burglar",
        "command": str(npx),
        "args": [str(SERVERS / "burglar.py")],
        "env": {"HOME": str(tmp_path)},
    }
    async with managed(parse_server({**server, "sandbox": "strict"})) as (manager, _, _events):
        status = manager.status()["burglar"]
    assert status.state == "failed"
    assert f"npx changes {tmp_path / '.npm'} before it starts a server" in status.reason
    assert "`a2c-smcp add NAME --from-config` installs the package, and starts its program directly" in status.reason
    opened = {**server, "sandbox": {"write": [str(tmp_path / ".npm")], "read": [sys.prefix, sys.base_prefix]}}
    async with managed(parse_server(opened)) as (manager, _, _events):
        assert manager.status()["burglar"].state == "ready"


@linux_only
@pytest.mark.covers("sandbox-faults")
async def test_a_program_whose_interpreter_is_out_of_reach_fails_once_with_the_remedy(tmp_path: Path) -> None:
    interpreter, script = tmp_path / "private" / "python", tmp_path / "script"
    interpreter.parent.mkdir()
    shutil.copy("/bin/sh", interpreter)
    script.write_text(f"#!{interpreter}\n")
    script.chmod(0o755)
    async with managed(parse_server({"name": "x", "command": str(script), "sandbox": "strict"})) as (
        manager,
        _,
        _events,
    ):
        status = manager.status()["x"]
    assert (status.state, status.starts) == ("failed", 1)
    assert status.reason.endswith("name the folder of its program, and of what that runs, in sandbox.read")


@linux_only
@pytest.mark.covers("sandbox-faults")
async def test_a_sandboxed_program_that_ends_for_another_reason_is_started_again() -> None:
    async with managed(parse_server({"name": "x", "command": "/bin/false", "sandbox": "strict"})) as (
        manager,
        _,
        _events,
    ):
        assert manager.status()["x"].state == "backoff"


# What is possible


@pytest.mark.parametrize("can", [OLDEST, NONE, MAC], ids=["an old kernel", "no Landlock", "macOS"])
def test_without_a_kernel_that_can_a_server_does_not_start_unless_that_is_allowed(can: Possible) -> None:
    with pytest.raises(NotSandboxed, match=r'cannot be enforced here: .*; "required": false starts it'):
        plan(can)
    made = plan(can, required=False)
    assert {each.startswith("not enforced: ") for each in made.warnings} == {True}
    assert (made.spec is None) == (can is MAC)


def test_only_what_is_asked_for_is_required() -> None:
    with pytest.raises(NotSandboxed, match=r"connect: needs Linux 6\.7 with Landlock"):
        plan(Possible(3, True))
    assert plan(Possible(3, True), connect="any").ports is None
    assert not plan(NONE, read="any", write="any", connect="any").spec["landlock"]


def test_what_an_older_kernel_leaves_open_is_told() -> None:
    assert plan(NEWEST).warnings == ()
    assert plan(UBUNTU).warnings == (
        "not enforced: signals to your other processes are not stopped: needs Linux 6.12 with Landlock",
    )
    (warning,) = plan(Possible(7, False)).warnings
    assert warning.startswith("not enforced: UDP, Unix sockets, listening, changes of modes")


@pytest.mark.parametrize(
    ("program", "folders"), [("npx", [".npm"]), ("uvx", [".cache/uv", ".local/share/uv"])], ids=["npx", "uvx"]
)
def test_a_program_that_changes_its_cache_is_named_with_what_to_do(
    program: str, folders: list[str], tmp_path: Path
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    command = str(tmp_path / program)

    def warnings(**fields: Any) -> tuple[str, ...]:
        (tmp_path / program).touch()
        return plan(command=command, env={"HOME": str(tmp_path)}, **fields).obstacles

    for number, folder in enumerate(folders):
        (warning,) = warnings(write=[f"~/{each}" for each in folders[:number]])
        assert warning.startswith(f"{program} changes {tmp_path / folder} before it starts a server")
        assert "`a2c-smcp add NAME --from-config` installs the package" in warning
    assert warnings(write=[f"~/{each}" for each in folders]) == warnings(write="any") == ()


def test_package_programs_are_told_that_there_is_no_network() -> None:
    assert plan().environment["npm_config_offline"] == "true"
    assert "UV_OFFLINE" not in plan(connect=[443]).environment
    assert "UV_OFFLINE" not in plan(connect="any").environment
