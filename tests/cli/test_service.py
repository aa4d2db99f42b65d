"""`a2c-smcp service`: what it writes for each system, that no key is in it, and how a command is kept running."""

from __future__ import annotations

import asyncio
import os
import plistlib
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from xml.etree import ElementTree

import pytest

from a2c_smcp.cli.commands import service
from a2c_smcp.cli.commands.service import SYSTEMS, Kind, Service, render_launchd, render_systemd, render_task
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.running import supervise
from tests.program import PROGRAM, run_program, start_program
from tests.shown_output import is_printed, steps
from tests.stage.cases import cases
from tests.waiting import until

pytestmark = pytest.mark.covers("service")

USER = "daemon"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "start-at-boot.md"
SECRET = "sk-0123456789abcdefghij"
ODD = ["--config", 'a % b $HOME "c" \\d & <e>.json', "--name", "Büro 1"]
NAMESPACE = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}


def made(kind: Kind = Kind.computer, words: list[str] = ODD, **more: Any) -> Service:
    folder = more.pop("folder", Path("/"))
    return Service(kind=kind, launcher=["/bin/true"], words=words, folder=folder, path="/bin:/o dd", user=USER, **more)


# What is written


UNITS = {
    "a computer": made(),
    "up": made(Kind.up, []),
    "an older systemd": made(systemd=252),
    "a Server of the system": made(Kind.server, ["--keys-file", "/etc/a2c-smcp/keys.json"], is_system=True),
    "an odd folder": made(folder=Path("/proc/self")),
}


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is on Linux only")
@pytest.mark.parametrize("wanted", UNITS.values(), ids=UNITS)
def test_a_unit_is_one_that_systemd_accepts(wanted: Service, tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "this test needs systemd-analyze: apt-get install systemd"
    version = int(
        subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    )
    file = tmp_path / f"{wanted.name}.service"
    file.write_text(render_systemd(replace(wanted, systemd=min(wanted.systemd, version))))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_unit_restarts_with_growing_pauses_where_systemd_knows_them_and_names_no_version() -> None:
    text = render_systemd(made())
    assert (
        "Restart=on-failure\nRestartPreventExitStatus=2\nRestartSec=1\nRestartSteps=8\nRestartMaxDelaySec=300\n" in text
    )
    assert "RestartSec=10\n" in render_systemd(made(systemd=252))
    assert "RestartSteps" not in render_systemd(made(systemd=252))
    assert "User=" not in text
    assert "WantedBy=default.target" in text
    system = render_systemd(UNITS["a Server of the system"])
    assert f"User={USER}" in system
    assert "WantedBy=multi-user.target" in system


def test_the_words_in_a_unit_are_those_that_the_command_gets() -> None:
    line = next(line for line in render_systemd(made()).splitlines() if line.startswith("ExecStart="))
    assert '$$HOME \\"c\\" \\\\d & <e>.json"' in line
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.removeprefix("ExecStart="))]
    assert words == ["/bin/true", "computer", *ODD]


def test_a_launch_agent_is_a_property_list_that_starts_it_at_sign_in_and_after_a_crash() -> None:
    agent = plistlib.loads(render_launchd(made()).encode())
    assert agent["ProgramArguments"] == ["/bin/true", "service", "run", "computer", *ODD]
    assert (agent["Label"], agent["RunAtLoad"]) == ("a2c-smcp-computer", True)
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["EnvironmentVariables"] == {"PATH": "/bin:/o dd"}
    assert agent["WorkingDirectory"] == "/"


def test_a_task_is_xml_with_the_fields_of_its_schema() -> None:
    text = render_task(made())
    assert text.startswith('<?xml version="1.0" encoding="UTF-16"?>')
    task = ElementTree.fromstring(text.encode("utf-16"))
    assert task.tag == f"{{{NAMESPACE['t']}}}Task"
    order = ["RegistrationInfo", "Triggers", "Principals", "Settings", "Actions"]
    assert [each.tag.rpartition("}")[2] for each in task] == order, "the schema has them in this order"

    def said(path: str) -> str | None:
        return task.findtext("/".join(f"t:{part}" for part in path.split("/")), namespaces=NAMESPACE)

    assert said("Triggers/LogonTrigger/UserId") == said("Principals/Principal/UserId") == USER
    assert said("Principals/Principal/LogonType") == "InteractiveToken"
    assert said("Principals/Principal/RunLevel") == "LeastPrivilege"
    assert said("Settings/ExecutionTimeLimit") == "PT0S"
    assert said("Settings/RestartOnFailure/Interval") == "PT1M"
    assert said("Actions/Exec/Command") == "/bin/true"
    assert said("Actions/Exec/Arguments") == subprocess.list2cmdline(["service", "run", "computer", *ODD])
    assert said("Actions/Exec/WorkingDirectory") == str(Path("/"))
    principal = task.find("t:Principals/t:Principal", NAMESPACE)
    actions = task.find("t:Actions", NAMESPACE)
    assert principal is not None
    assert actions is not None
    assert principal.get("id") == actions.get("Context")


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_file_says_which_program_it_starts(system: str, tmp_path: Path) -> None:
    known = SYSTEMS[system]
    file = tmp_path / known.file(made()).name
    file.write_bytes(known.render(made()).encode(known.encoding))
    assert service.program_in(file) == "/bin/true"
    file.write_text("nothing")
    assert service.program_in(file) == ""


@pytest.mark.parametrize("system", SYSTEMS)
def test_commands_of_each_system_name_the_service(system: str) -> None:
    known, wanted = SYSTEMS[system], made()
    commands = [*known.install(wanted), *known.remove(wanted), *known.restart(wanted), known.status(wanted)]
    assert any(wanted.name in word for command in commands for word in command)


# No key


def checked(kind: Kind, *words: str) -> list[str]:
    return service.checked_words(kind, words, Path("/private/x.env"))


@cases(
    "kind, words, remedy",
    (Kind.computer, ["--api-key", SECRET], "--key-file"),
    (Kind.server, ["--api-key", SECRET], "--keys-file"),
    (Kind.server, [f"--api-key={SECRET}"], "--keys-file"),
    (Kind.server, ["--admin-key", SECRET], "A2C_SERVER_ADMIN_KEY=… into /private/x.env"),
    (Kind.server, ["--jwt-secret", SECRET], "A2C_SERVER_JWT_SECRET=… into /private/x.env"),
    (Kind.up, ["--webhook-secret", SECRET], "A2C_WEBHOOK_SECRET=… into /private/x.env"),
    (Kind.computer, ["--proxy", f"http://me:{SECRET}@proxy:3128"], "/private/x.env"),
    (Kind.server, ["--redis", f"redis://:{SECRET}@db"], "/private/x.env"),
)
def test_a_secret_on_the_line_is_refused_with_a_remedy(kind: Kind, words: list[str], remedy: str) -> None:
    with pytest.raises(WrongUse) as refusal:
        checked(kind, *words)
    assert remedy in refusal.value.message
    assert SECRET not in refusal.value.message


def test_a_key_in_a_variable_is_refused_too_unless_a_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2C_API_KEY", SECRET)
    with pytest.raises(WrongUse, match="--key-file"):
        checked(Kind.computer)
    assert checked(Kind.computer, "--key-file", "hub.key") == ["--key-file", "hub.key"]
    assert checked(Kind.up) == []


def test_variables_that_are_set_now_become_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2C_URL", "https://hub.example")
    monkeypatch.setenv("A2C_LOG_JSON", "1")
    words = checked(Kind.computer, "--name", "laptop")
    assert words == ["--name", "laptop", "--url", "https://hub.example", "--log-json"]


@cases("words", ["--nonsense"], ["--console-port", "many"], ["--name", "a\nb"])
def test_options_that_the_command_does_not_take_are_wrong_at_once(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"nonsense|valid integer|printable"):
        checked(Kind.computer, *words)


# The command


Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*words: str, **environ: str) -> CompletedProcess[str]:
        env = {"HOME": str(tmp_path), "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}", **environ}
        done = run_program("service", *words, cwd=tmp_path, env=env)
        assert "Traceback" not in done.stderr
        return done

    return run


linux = pytest.mark.skipif(sys.platform != "linux", reason="systemctl is on Linux only")


@linux
def test_what_would_be_written_is_shown_and_nothing_is_where_nobody_says_yes(run: Run, tmp_path: Path) -> None:
    done = run("install", "computer", "--config", "servers.json", "--yes")
    assert done.returncode == 2
    assert "--yes before the command" in done.stderr, "the one behind it is the computer's"
    assert " computer --config servers.json --yes\n" in done.stdout
    assert f"WorkingDirectory={tmp_path}\n" in done.stdout
    assert "then: systemctl --user enable a2c-smcp-computer\n" in done.stdout
    assert not (tmp_path / ".config").exists()


@linux
def test_the_guide_shows_what_is_written_and_what_is_refused(run: Run) -> None:
    (install, shown), (refused, why) = [(command, output) for command, output in steps(GUIDE) if output]
    written = run(*shlex.split(install)[2:]).stdout.replace('"', "")  # those of a path with spaces
    assert is_printed(shown, written)
    assert is_printed(why, run(*shlex.split(refused.replace("$KEY", SECRET))[2:]).stderr)


@linux
def test_the_launcher_is_written_as_it_was_found_and_no_link_is_followed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "a2c-smcp").symlink_to(PROGRAM)
    done = run("install", "up", PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert f"ExecStart={tmp_path}/bin/a2c-smcp up\n" in done.stdout or f"ExecStart={PROGRAM} up\n" in done.stdout
    assert "site-packages" not in done.stdout


@linux
def test_a_service_is_written_for_its_user_alone_listed_checked_and_removed(run: Run, tmp_path: Path) -> None:
    """There may be no systemd that runs here: then its own words are shown."""
    done = run("install", "--yes", "up")
    file = tmp_path / ".config/systemd/user/a2c-smcp-up.service"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    if done.returncode:
        assert "systemctl --user daemon-reload: " in done.stderr
    assert run("status", "up").returncode == 0
    checks = run_program("doctor", cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}).stdout
    assert "a2c-smcp-up is started by " in checks
    file.write_text(file.read_text().replace(str(PROGRAM.parent), "/gone"))
    checks = run_program("doctor", cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}).stdout
    assert "/gone/a2c-smcp, which is not there. Run `a2c-smcp service install up` again" in checks
    assert run("remove", "up").returncode == 0
    assert not file.exists()


@cases("words", ["status"], ["logs", "server"], ["restart"], ["remove", "up"])
def test_without_a_service_there_is_an_error_that_says_how_to_make_one(run: Run, words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert "a2c-smcp service install" in done.stderr


@linux
@cases("words", ["--system", "computer"], ["--system", "server"])
def test_a_service_of_the_system_is_a_server_of_a_named_user(run: Run, words: list[str]) -> None:
    done = run("install", "--yes", *words)
    assert done.returncode == 2
    assert "--system is for a Server under systemd, of a user that sudo names" in done.stderr


@linux
def test_a_folder_of_units_that_others_may_change_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / ".config/systemd/user"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    done = run("install", "--yes", "up")
    assert done.returncode == 1
    assert "chmod go-w" in done.stderr
    assert not list(folder.iterdir())


# Kept running


def script(folder: Path, *lines: str) -> list[str]:
    file = folder / "program.py"
    file.write_text(
        "\n".join(["import os, pathlib, sys, time", f"runs = pathlib.Path({str(folder / 'runs')!r})", *lines])
    )
    return [sys.executable, str(file)]


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_a_command_that_crashes_is_started_again_with_growing_pauses_until_it_ends_well(tmp_path: Path) -> None:
    lines = ["runs.open('a').write('x')", "print('hello', os.environ['TOKEN'])", "sys.exit(len(runs.read_text()) < 4)"]
    log = tmp_path / "log"
    code = await supervise(script(tmp_path, *lines), log, {**os.environ, "TOKEN": "ü"}, first_pause=0.01)
    assert code == 0
    again = [line for line in log.read_text().splitlines() if "again" in line]
    assert again == [f"it ended with code 1, and is started again in {pause} s" for pause in ("0.01", "0.02", "0.04")]
    assert log.read_text().count("hello ü") == 4


async def test_a_command_with_wrong_options_is_not_started_again(tmp_path: Path) -> None:
    assert (
        await supervise(script(tmp_path, "runs.open('a').write('x'); sys.exit(2)"), tmp_path / "log", os.environ) == 2
    )
    assert (tmp_path / "runs").read_text() == "x"


async def test_a_long_log_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    await supervise(script(tmp_path, "print(('x' * 99 + '\\n') * 150_000)"), log, os.environ)
    sizes = [(tmp_path / f"log{number}").stat().st_size for number in ("", *(f".{each}" for each in range(1, 6)))]
    assert all(0 < size <= 1024 * 1024 for size in sizes)
    assert not (tmp_path / "log.6").exists()


async def test_a_service_that_is_stopped_ends_its_command_and_nothing_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    env = {"HOME": str(tmp_path), "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"}
    running = await start_program("service", "run", "up", "--port", "0", cwd=tmp_path, env=env)
    log = tmp_path / ".local/state/a2c-smcp/services/up.log"
    await until(lambda: log.exists() and "http://127.0.0.1:" in log.read_text())
    children = children_of(running.pid)
    running.send_signal(signal.SIGTERM)
    await asyncio.wait_for(running.wait(), 60)
    assert running.returncode == 0
    assert children
    await until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert "again" not in log.read_text()


def test_a_file_of_variables_counts_only_if_it_is_private(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / ".local/state/a2c-smcp/services"
    folder.mkdir(parents=True)
    file = folder / "server.env"
    file.write_text("# of operators\nA2C_SERVER_PORT=nonsense\n")
    file.chmod(0o644)
    done = run("run", "server")
    assert done.returncode == 1
    assert "chmod 600" in done.stderr
    assert "chmod 600" in run("install", "--yes", "server").stderr
    file.chmod(0o600)
    assert run("run", "server").returncode == 0, "wrong use is not started again"
    assert "--port: must be a whole number" in (folder / "server.log").read_text()
