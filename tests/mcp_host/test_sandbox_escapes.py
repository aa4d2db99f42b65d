"""Ways out of the sandbox of a stdio server, each tried by a server that runs any code. It is usable afterwards."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.files import default_folder
from a2c_smcp.mcp_host.config.sandbox import SandboxSettings
from a2c_smcp.mcp_host.failures import NotSandboxed, ServerGone
from a2c_smcp.mcp_host.processes.plan import planned, possible
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import managed
from tests.mcp_host.sandboxed import burglar, sandboxed
from tests.on_disk import mode_of
from tests.stage.cases import cases
from tests.waiting import until

HERE = possible()
TCP, SIGNALS = 4, 6
pytestmark = [
    pytest.mark.covers("sandbox-escapes"),
    pytest.mark.skipif(not HERE.files, reason="this kernel has no Landlock that covers files"),
]
DENIED, LOADER = "PermissionError: [Errno 13]", "/lib64/ld-linux-x86-64.so.2"
needs_signals = pytest.mark.skipif(HERE.landlock < SIGNALS, reason="this kernel's Landlock has no scopes")
needs_filter = pytest.mark.skipif(not HERE.filter, reason="calls cannot be filtered here")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the owner, outside of the sandbox."""
    path = tmp_path / "secret.txt"
    path.write_text("the owner's secret")
    return path


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of the owner, with a secret in its environment, in its arguments and open."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "--key=the-secret-argument"]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, env={"KEY": "the-secret-variable"})
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def is_folder(path: str) -> bool:
    return Path(path).is_dir()


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# Files


async def test_files_of_the_owner_cannot_be_read_in_any_way(secret: Path) -> None:
    home = Path.home()
    ways = {
        "open": f"found = open({str(secret)!r}).read()",
        "list the home folder": f"import os; found = os.listdir({str(home)!r})",
        "list its folder": f"import os; found = os.listdir({str(secret.parent)!r})",
        "execute": f"import os; os.execv({str(secret)!r}, ['x'])",
        "a child": f"import subprocess; subprocess.run(['cat', {str(secret)!r}], check=True)",
        "a child in a session of its own": f"""
            import subprocess, sys
            code = "open({str(secret)!r})"
            subprocess.run([sys.executable, "-c", code], check=True, start_new_session=True)
        """,
        "a loader": f"import subprocess; subprocess.run([{LOADER!r}, '/bin/cat', {str(secret)!r}], check=True)",
    }
    async with burglar() as one:
        await one.is_refused(ways, DENIED, "CalledProcessError", "FileNotFoundError")


async def test_files_elsewhere_cannot_be_written_truncated_removed_moved_or_linked(
    secret: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "own").write_text("own")
    ways = {
        "write": f"open({str(secret)!r}, 'w')",
        "append": f"open({str(secret)!r}, 'a')",
        "truncate": f"import os; os.truncate({str(secret)!r}, 0)",
        "remove": f"import os; os.unlink({str(secret)!r})",
        "make beside": f"open({str(tmp_path / 'new')!r}, 'w')",
        "make a folder": f"import os; os.mkdir({str(tmp_path / 'new')!r})",
        "a link to it": f"import os; os.link({str(secret)!r}, {str(shared / 'stolen')!r})",
        "move it in": f"import os; os.rename({str(secret)!r}, {str(shared / 'stolen')!r})",
        "move out": f"import os; os.rename({str(shared / 'own')!r}, {str(tmp_path / 'new')!r})",
        "a device": f"import os; os.mknod({str(shared / 'disk')!r}, 0o60600, os.makedev(8, 0))",
        "the temporary folder of all": "open('/tmp/a2c-smcp-test-burglar', 'w')",
        "a program that others run": f"open({sys.executable!r}, 'a')",
    }
    async with burglar({"write": [str(shared)]}) as one:
        await one.is_refused(ways, "PermissionError", "OSError: [Errno 18]", "OSError: [Errno 26]")
    assert files_in(tmp_path) == {"secret.txt": "the owner's secret", "shared/own": "own"}


async def test_symbolic_links_lead_nowhere_new(secret: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    async with burglar({"write": [str(shared)]}) as one:
        link = str(shared / "link")
        ways = {
            "a link": f"import os; os.symlink({str(secret)!r}, {link!r}); found = open({link!r}).read()",
            "the folder above": f"open({str(shared)!r} + '/../secret.txt')",
            "another folder to be in": f"import os; os.chdir({str(tmp_path)!r}); open('secret.txt')",
        }
        await one.is_refused(ways, DENIED)


@needs_filter
@pytest.mark.parametrize("is_readable", [False, True], ids=["strict", "readable"])
async def test_modes_owners_and_attributes_of_files_stay_as_they_are(is_readable: bool, secret: Path) -> None:
    before = mode_of(secret), mode_of(secret.parent)
    sandbox = {"read": [str(secret.parent)], "connect": "any"} if is_readable else "strict"
    ways = {
        "chmod": f"import os; os.chmod({str(secret)!r}, 0o666)",
        "chmod of its folder": f"import os; os.chmod({str(secret.parent)!r}, 0)",
        "fchmod": f"import os; os.fchmod(os.open({str(secret)!r}, os.O_RDONLY), 0o666)",
        "fchmodat2": f"import ctypes; ctypes.CDLL(None).syscall(452, -100, {bytes(secret)!r}, 0o666, 0x100)",
        "chown": f"import os; os.chown({str(secret)!r}, -1, os.getgid())",
        "an attribute": f"import os; os.setxattr({str(secret)!r}, 'user.a2c', b'1')",
    }
    async with burglar(sandbox) as one:
        for way, code in ways.items():
            await one.tries(code)
            assert (mode_of(secret), mode_of(secret.parent)) == before, way
    assert os.listxattr(secret) == []


@needs_filter
async def test_copies_of_files_are_made_in_the_folder_for_temporary_files_all_the_same() -> None:
    async with burglar() as one:
        copied = "import os, shutil, tempfile; found = shutil.copy2(os.__file__, tempfile.mkdtemp())"
        assert (await one.tries(copied)).endswith("/os.py")


@needs_filter
async def test_names_of_files_are_not_learnt_by_watching_a_folder(tmp_path: Path) -> None:
    watch = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        found = libc.inotify_add_watch(libc.inotify_init1(0), {bytes(tmp_path)!r}, 0xfff), libc.fanotify_init(0x200, 0)
    """
    async with burglar() as one:
        assert await one.tries(watch) == "(-1, -1)"
    async with burglar({"read": [str(tmp_path)]}) as one:
        assert await one.tries(watch) == "(1, -1)"


async def test_the_folder_for_temporary_files_is_private_and_vanishes() -> None:
    async with burglar() as one, burglar() as other:
        code = "import tempfile; path = tempfile.mkstemp()[1]; open(path, 'w').write('x'); found = path"
        own = await one.tries(code)
        assert files_in(Path(own).parent) == {Path(own).name: "x"}
        assert (await other.tries(f"open({own!r})")).startswith(DENIED)
    assert files_in(Path(own).parent) == {}


async def test_the_folder_for_temporary_files_vanishes_however_deep_it_is(secret: Path) -> None:
    async with burglar() as one:
        folder = await one.tries(f"""
            import os, tempfile
            found = tempfile.gettempdir()
            os.symlink({str(secret.parent)!r}, found + "/link")
            os.makedirs(found + "/locked/inner", 0o000, exist_ok=True)
            os.chdir(found)
            for _ in range(1100):
                open("file", "w").close()
                os.mkdir("deeper")
                os.chdir("deeper")
        """)
        assert is_folder(folder)
    await until(lambda: not is_folder(folder))
    assert files_in(secret.parent) == {secret.name: "the owner's secret"}


@pytest.mark.covers("sandbox-clean-up")
@pytest.mark.parametrize("write", [[tempfile.gettempdir()], "any"], ids=["the temporary folder", "any"])
async def test_folders_that_become_links_while_they_are_removed_lead_to_no_file_of_the_owner(
    write: Any, secret: Path
) -> None:
    """One server leaves many folders behind, another puts links in their place while a watcher removes them."""
    swap = f"""
        import os, threading
        folder = FOLDER
        def swap():
            for _ in range(4000):
                try:
                    names = os.listdir(folder)
                except OSError:
                    return
                for name in names:
                    try:
                        if os.path.isdir(f"{{folder}}/{{name}}") and not os.path.islink(f"{{folder}}/{{name}}"):
                            os.rename(f"{{folder}}/{{name}}", f"{{folder}}/{{name}}-taken")
                            os.symlink({str(secret.parent)!r}, f"{{folder}}/{{name}}")
                    except OSError:
                        pass
        threading.Thread(target=swap, daemon=True).start()
        open(folder + "/ready", "w").close()
    """
    for number in range(3):
        (secret.parent / f"{number}.txt").write_text("the owner's")
    before = files_in(secret.parent)
    async with burglar({"write": write, "read": "any"}) as thief:
        async with burglar() as one:
            make = "import os, tempfile; found = tempfile.gettempdir()"
            make += "; [os.makedirs(f'{found}/{n}/inner') for n in range(1500)]"
            folder = await one.tries(make)
            said = await thief.tries(swap.replace("FOLDER", repr(folder)))
            assert said == "done" or (write != "any" and said.startswith(DENIED))
        assert files_in(secret.parent) == before


@pytest.mark.covers("sandbox-clean-up")
async def test_what_a_killed_watcher_has_left_is_removed_by_the_next_one(secret: Path) -> None:
    async with burglar() as one:
        folder = await one.tries("import tempfile; found = tempfile.gettempdir()")
        left = Path(folder).parent / "left-by-a-watcher-that-was-killed"
        (left / "inner").mkdir(parents=True, exist_ok=True)
        (left / "inner" / "link").symlink_to(secret.parent)
        async with burglar():
            assert is_folder(folder)
        await until(lambda: not left.exists())
        assert is_folder(folder), "one in use stays"
    assert files_in(secret.parent) == {secret.name: "the owner's secret"}


@pytest.mark.covers("sandbox-clean-up")
@pytest.mark.parametrize("field", ["read", "write"])
def test_no_sandbox_names_the_folder_of_the_temporary_folders(field: str, tmp_path: Path) -> None:
    state = default_folder()
    (state / "sandboxes").mkdir(mode=0o700, parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to(state)
    names = [str(state), str(state / "sandboxes"), str(tmp_path / "link"), f"{state}/../{state.name}/sandboxes"]
    for path in [*names, *([str(state.parent), "/"] if field == "write" else [])]:
        with pytest.raises(NotSandboxed, match=rf"sandbox.{field}: .* would open .*; name the folders beside it"):
            planned(SandboxSettings(**{field: [path]}), command="/bin/sh", args=[], env={}, configured={}, cwd="/")


async def test_without_a_sandbox_the_same_ways_lead_out(secret: Path, victim: subprocess.Popen[bytes]) -> None:
    async with burglar(None) as one:
        assert await one.tries(f"found = open({str(secret)!r}).read()") == "the owner's secret"
        assert "KEY=the-s" in await one.tries(f"found = open('/proc/{victim.pid}/environ', 'rb').read(9)")
        sockets = "import socket; socket.socket(1, 1); socket.socket(2, 2); socket.socket(2, 1, 262)"
        assert await one.tries(f"{sockets}; socket.socketpair(1, 2)") == "done"
        limit = f"import resource; found = resource.prlimit({victim.pid}, resource.RLIMIT_FSIZE, (4096, 4096))"
        assert "Error" not in await one.tries(limit)
        assert resource.prlimit(victim.pid, resource.RLIMIT_FSIZE) == (4096, 4096)
        assert await one.tries(f"import os; os.chmod({str(secret)!r}, 0o666)") == "done"
        assert mode_of(secret) == 0o666
        assert await one.tries(f"import os; os.kill({victim.pid}, 9)") == "done"


# Other processes


async def test_other_processes_cannot_be_looked_into(victim: subprocess.Popen[bytes], secret: Path) -> None:
    ways = {
        f"{what} of {whose}": f"found = open('/proc/{pid}/{what}', 'rb').read(9)"
        for whose, pid in (("the computer", os.getpid()), ("another", victim.pid))
        for what in ("mem", "environ", "cmdline", "maps", "fd/0", f"root{secret}", f"cwd/../{secret}", "stack")
    }
    ways["the guard process"] = "import os; found = open(f'/proc/{os.getppid()}/mem', 'rb').read(9)"
    async with burglar() as strict, burglar({"read": ["/proc"]}) as with_proc:
        for way, code in ways.items():
            assert (await strict.tries(code)).startswith(("PermissionError", "FileNotFoundError")), way
            said = await with_proc.tries(code)
            assert "cmdline" in way or said.startswith(("PermissionError", "FileNotFoundError", "OSError")), (way, said)


async def test_other_processes_cannot_be_traced_read_or_robbed_of_descriptors(victim: subprocess.Popen[bytes]) -> None:
    libc = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
    ways = {
        "attach": f"result = libc.ptrace(16, {victim.pid}, 0, 0)",
        "seize": f"result = libc.ptrace(0x4206, {victim.pid}, 0, 0)",
        "process_vm_readv": f"""
        buffer = ctypes.create_string_buffer(16)
        class Part(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
        here, there = Part(ctypes.addressof(buffer), 16), Part(0x400000, 16)
        result = libc.process_vm_readv({victim.pid}, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        """,
        "pidfd_getfd": f"import os; result = libc.syscall(438, os.pidfd_open({victim.pid}), 0, 0)",
        "attach to the computer": f"result = libc.ptrace(16, {os.getpid()}, 0, 0)",
    }
    async with burglar() as one:
        for way, code in ways.items():
            said = await one.tries(
                f"{libc}\n{code.strip()}\nfound = result, ctypes.get_errno()".replace("\n        ", "\n")
            )
            assert said == "(-1, 1)", (way, said)
    assert victim.poll() is None


@needs_signals
async def test_other_processes_get_no_signals(victim: subprocess.Popen[bytes]) -> None:
    async with burglar() as one:
        for pid in (victim.pid, os.getpid()):
            assert "[Errno 1]" in await one.tries(f"import os; os.kill({pid}, {int(signal.SIGKILL)})")
        assert "[Errno 1]" in await one.tries(f"import os; os.kill(os.getppid(), {int(signal.SIGSTOP)})")
        own = "import os, subprocess; p = subprocess.Popen(['sleep', '60']); p.kill(); found = p.wait()"
        assert await one.tries(own) == "-9"
    assert victim.poll() is None


@needs_filter
async def test_limits_of_other_processes_stay_as_they_are(victim: subprocess.Popen[bytes]) -> None:
    before = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
    async with burglar({"connect": "any"}) as one:
        for pid in (victim.pid, os.getpid()):
            said = await one.tries(f"import resource; resource.prlimit({pid}, resource.RLIMIT_FSIZE, (0, 0))")
            assert said.startswith("PermissionError"), said
        own = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); found = resource.prlimit(0, 7)"
        assert await one.tries(own) == "(64, 64)"
    assert resource.prlimit(victim.pid, resource.RLIMIT_FSIZE) == before


async def test_no_descriptor_is_inherited_beside_the_three_pipes() -> None:
    async with burglar() as one:
        found = "import os; found = sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[:-1])"
        opened = await one.tries(found)
    assert opened.count("pipe:[") == 3
    assert opened.count("'") == 6


async def test_memory_that_processes_share_by_number_is_out_of_reach() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(0, 4096, 0o1600)
    assert number >= 0
    try:
        async with burglar() as one:
            said = await one.tries(f"""
                import ctypes
                libc = ctypes.CDLL(None, use_errno=True)
                libc.shmat.restype = ctypes.c_long
                found = libc.shmat({number}, None, 0), ctypes.get_errno()
            """)
            assert said.startswith("(-1,")
    finally:
        libc.shmctl(number, 0, None)


# The network


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


WAYS_TO_CONNECT = {
    "TCP": "s = socket.create_connection(('127.0.0.1', PORT))",
    "Multipath TCP": "s = socket.socket(2, 1, 262); s.connect(('127.0.0.1', PORT))",
    "Fast Open": "s = socket.socket(2, 1); s.sendto(b'hello', 0x20000000, ('127.0.0.1', PORT))",
    "Fast Open, sendmsg": "s = socket.socket(2, 1); s.sendmsg([b'hello'], [], 0x20000000, ('127.0.0.1', PORT))",
    "IPv6": "s = socket.socket(10, 1); s.connect(('::ffff:127.0.0.1', PORT))",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120)) >= 0",
    "listen": "s = socket.socket(2, 1); s.listen()",
    "bind": "s = socket.socket(2, 1); s.bind(('127.0.0.1', 0))",
    "raw": "s = socket.socket(2, 3, 6)",
    "packet": "s = socket.socket(17, 3, 768)",
    "vsock": "s = socket.socket(40, 1)",
    "Unix": "s = socket.socket(1, 1); s.connect(UNIX)",
}


@needs_filter
@pytest.mark.skipif(not HERE.ports, reason="this kernel's Landlock has no TCP ports")
@pytest.mark.parametrize("connect", [[], [9]], ids=["no port", "another port"])
async def test_no_other_port_is_reached_in_any_way(connect: list[int], listener: socket.socket, tmp_path: Path) -> None:
    address = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(address)
        unix.listen()
        async with burglar({"connect": connect, "read": [str(tmp_path)]}) as one:
            before = f"import socket; PORT = {listener.getsockname()[1]}; UNIX = {address!r}\n"
            ways = {way: before + code for way, code in WAYS_TO_CONNECT.items()}
            await one.is_refused(ways, "PermissionError", "AssertionError")
    with pytest.raises(BlockingIOError):
        listener.accept()


@needs_filter
@pytest.mark.skipif(not HERE.ports, reason="this kernel's Landlock has no TCP ports")
@pytest.mark.parametrize("connect", [[9, "unix"], ["unix"]], ids=["with a port", "without a port"])
async def test_no_server_listens_on_tcp_also_where_it_may_use_unix_sockets(connect: list[Any], tmp_path: Path) -> None:
    ways = {
        "listen": "s = socket.socket(2, 1); s.listen()",
        "listen, IPv6": "s = socket.socket(10, 1); s.listen()",
        "bind": "s = socket.socket(2, 1); s.bind(('127.0.0.1', 0)); s.listen()",
        "Multipath TCP": "s = socket.socket(2, 1, 262); s.listen()",
        "in a child": """
            import subprocess, sys
            code = "import socket; socket.socket(2, 1).listen()"
            if subprocess.run([sys.executable, "-c", code], stderr=-3).returncode: raise PermissionError("in the child")
        """,
    }
    async with burglar({"connect": connect, "write": [str(tmp_path)]}) as one:
        before = "import socket\n"
        await one.is_refused({way: before + textwrap.dedent(code) for way, code in ways.items()}, "PermissionError")
        said = await one.tries(f"{before}s = socket.socket(1, 1); s.bind({str(tmp_path / 's')!r}); s.listen()")
        assert said == "done" if connect == ["unix"] else said.startswith(DENIED)
        assert await one.tries(f"{before}s = socket.socket(1, 1); s.close()") == "done"


@needs_filter
async def test_no_udp_leaves_a_server_that_may_connect_to_nothing() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        code = f"import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', {receiver.getsockname()[1]}))"
        async with burglar() as one:
            assert (await one.tries(code)).startswith(DENIED)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)


@needs_filter
@pytest.mark.parametrize("connect", [[], [9]], ids=["no port", "another port"])
async def test_a_pair_of_connected_sockets_sends_nothing_to_a_unix_socket(connect: list[int], tmp_path: Path) -> None:
    address = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(address)
        log.setblocking(False)
        async with burglar({"connect": connect, "read": [str(tmp_path)]}) as one:
            for kind in (socket.SOCK_DGRAM, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.SOCK_RAW):
                send = f"import socket; socket.socketpair(1, {int(kind)})[0].sendto(b'x', {address!r})"
                assert (await one.tries(send)).startswith(DENIED)
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                pair = f"import socket; one, other = socket.socketpair(1, {int(kind)}); one.send(b'x')"
                assert await one.tries(f"{pair}; found = other.recv(1)") == "b'x'"
                again = await one.tries(f"{pair}; one.connect({address!r})")
                assert again.startswith("OSError"), again
        with pytest.raises(BlockingIOError):
            log.recv(1)


@needs_filter
@pytest.mark.parametrize("connect", [[], [9], ["unix"], ["unix", 9]], ids=str)
async def test_a_pair_of_sockets_is_of_no_other_family_than_unix(connect: list[Any]) -> None:
    """TIPC makes pairs, which send to other programs, and the kernel loads its module when somebody asks."""
    async with burglar({"connect": connect}) as one:
        for family, kind in ((30, 1), (30, 2), (30, 5), (16, 3), (40, 1)):
            assert (await one.tries(f"import socket; socket.socketpair({family}, {kind})")).startswith(DENIED)
        assert await one.tries("import socket; socket.socketpair()") == "done"


@needs_signals
async def test_abstract_sockets_of_other_processes_are_out_of_reach_even_with_unix_sockets() -> None:
    name = f"\0a2c-smcp-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        async with burglar({"connect": ["unix"]}) as one:
            assert "[Errno 1]" in await one.tries(f"import socket; socket.socket(1, 1).connect({name!r})")


# Machine


FORKS = """
import os, time
for _ in range(8):
    if os.fork() == 0: os.setsid()
time.sleep(600)
"""
"""It grows to 256 processes and no further, since this runs on the machine of a person."""
THREADS = """
import threading, time
threading.stack_size(64 * 1024)
for _ in range(100): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
time.sleep(600)
"""
ORPHANS = """
import os, time
for _ in range(30):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
time.sleep(600)
"""
MEMORY = "kept = []\nwhile True: kept.append(bytearray(4 * 1024 * 1024))"
MEMORY_OF_ALL = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        kept = os.urandom(60 * 1024 * 1024)
        time.sleep(600)
time.sleep(600)
"""


@cases(
    "code, sandbox, reason",
    (FORKS, {"processes": 40}, "more than the 40 processes that are allowed"),
    (THREADS, {"processes": 2}, "threads, and 64 are allowed"),
    (ORPHANS, {"processes": 20}, "more than the 20 processes that are allowed"),
    (MEMORY, {"memory": "128 MiB"}, "of memory, and 128 MiB are allowed"),
    (MEMORY_OF_ALL, {"memory": "160 MiB"}, "of memory, and 160 MiB are allowed"),
    ids=[
        "a fork bomb",
        "a bomb of threads",
        "children that leave session and parent",
        "memory",
        "memory of all together",
    ],
)
async def test_a_server_that_takes_too_much_is_ended_whole_and_started_again(
    code: str, sandbox: dict[str, Any], reason: str
) -> None:
    async with managed(sandboxed(sandbox)) as (manager, changes, _):
        assert manager["burglar"].state == "ready"
        with pytest.raises(ServerGone):
            await manager["burglar"].requests.call_tool(ToolRequest("run", {"code": code}, 60))
        await changes.until(lambda told: any(state == "backoff" and reason in why for _, state, why in told))
        await until(lambda: manager["burglar"].state == "ready")
        result = await manager["burglar"].requests.call_tool(ToolRequest("run", {"code": "found = 6 * 7"}, 60))
        assert result["content"][0]["text"] == "42"
    await until(lambda: not _running("burglar.py"))


@needs_signals
async def test_the_ender_of_a_sandbox_is_out_of_reach_of_its_server() -> None:
    async with burglar({"read": ["/proc"]}) as one:
        found = await one.tries("""
            import os
            parent = os.getppid()
            children = open(f"/proc/{parent}/task/{parent}/children").read().split()
            found = [int(pid) for pid in children if int(pid) != os.getpid()]
        """)
        (ender,) = json.loads(found)
        assert "[Errno 1]" in await one.tries(f"import os; os.kill({ender}, 9)")
        assert "[Errno 1" in await one.tries(f"open('/proc/{ender}/mem', 'rb').read(1)")
        os.kill(ender, 0)


async def test_a_request_for_more_memory_than_can_ever_be_used_fails_at_once() -> None:
    async with burglar({"memory": "128 MiB"}) as one:
        assert (await one.tries("x = bytearray(64 * 1024 ** 3)")).startswith("MemoryError")


async def test_root_has_no_capabilities_in_a_sandbox() -> None:
    async with burglar() as one:
        status = await one.tries("found = open('/proc/self/status').read()")
    sets = {line.partition(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Cap")}
    assert sets["CapEff"] == sets["CapPrm"] == sets["CapInh"] == sets["CapAmb"] == "0" * 16
    assert "NoNewPrivs:\t1" in status


def _running(name: str) -> list[str]:
    """The processes of this server that are left without a parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == "1" and any(word.endswith(name.encode()) for word in words):
            found.append(folder.name)
    return found
