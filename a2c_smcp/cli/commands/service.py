"""`a2c-smcp service`: have a Computer, a Server or both started at boot, and again after a crash.

A service is described by one file: a unit of systemd, a launch agent of macOS, a task of Windows' Task Scheduler. The
three `render_…` functions make it and read nothing. No key is in it: keys are in files of their own, or in the file of
variables that the service reads. It names the launcher as it was found, and so survives an update of the package.

systemd restarts a service with growing pauses and keeps its log. Elsewhere `a2c-smcp service run`, which the file
names, does both.
"""

from __future__ import annotations

import codecs
import getpass
import html
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from xml.etree import ElementTree

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.running import END_TIME, LONGEST_PAUSE, WRONG_USE, supervise
from a2c_smcp.cli.suggestions import invocation_for_programs
from a2c_smcp.cli.terminal import Terminal, put_text
from a2c_smcp.files import default_folder, private_folder, remedy_for, replace_file
from a2c_smcp.loops import run_program


class Kind(StrEnum):
    """The commands that can be a service."""

    computer = "computer"
    server = "server"
    up = "up"


_SECRETS = {
    "api_key": "A2C_API_KEY",
    "admin_key": "A2C_SERVER_ADMIN_KEY",
    "jwt_secret": "A2C_SERVER_JWT_SECRET",
    "webhook_secret": "A2C_WEBHOOK_SECRET",
}
"""Options that hold a secret, and their variables; --api-key of a Server has another one."""
_KEY_FILES = {
    Kind.computer: "Name a file that holds the key with --key-file.",
    Kind.server: "Name a file of keys with --keys-file; `a2c-smcp key --add-to FILE` makes one.",
}
_GROWING_SINCE = 254  # version of systemd with RestartSteps
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_TASK = "http://schemas.microsoft.com/windows/2004/02/mit/task"


@dataclass(frozen=True, kw_only=True)
class Service:
    """All that the file of a service says. `launcher` are the words that start this program, `words` its options."""

    kind: Kind
    launcher: Sequence[str]
    words: Sequence[str]
    folder: Path
    path: str
    user: str
    is_system: bool = False
    systemd: int = _GROWING_SINCE

    @property
    def name(self) -> str:
        return f"a2c-smcp-{self.kind}"

    @property
    def variables(self) -> Path:
        """The file of variables that may hold keys."""
        return Path("/etc/a2c-smcp") / f"{self.kind}.env" if self.is_system else _own_folder() / f"{self.kind}.env"

    @property
    def log(self) -> Path:
        return _own_folder() / f"{self.kind}.log"

    @property
    def supervised(self) -> list[str]:
        """The command where nothing but `service run` restarts it and keeps its log."""
        return [*self.launcher, "service", "run", self.kind.value, *self.words]


def _own_folder() -> Path:
    return default_folder() / "services"


# The three files


def render_systemd(service: Service) -> str:
    """A unit: of the user, or of the system with the user as whom it runs."""
    growing = ["RestartSteps=8", f"RestartMaxDelaySec={LONGEST_PAUSE:g}"]
    lines = [
        "[Unit]",
        f"Description=A2C-SMCP {service.kind}",
        *(["Wants=network-online.target", "After=network-online.target"] if service.is_system else []),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        *([f"User={service.user}"] if service.is_system else []),
        f"WorkingDirectory={_specifier_free(str(service.folder))}",
        f"Environment={_quoted(_specifier_free(f'PATH={service.path}'))}",
        f"EnvironmentFile=-{_specifier_free(str(service.variables))}",
        f"ExecStart={' '.join(_words_of_systemd([*service.launcher, service.kind.value, *service.words]))}",
        "Restart=on-failure",
        f"RestartPreventExitStatus={WRONG_USE}",
        *(["RestartSec=1", *growing] if service.systemd >= _GROWING_SINCE else ["RestartSec=10"]),
        f"TimeoutStopSec={END_TIME:g}",
        "",
        "[Install]",
        f"WantedBy={'multi-user' if service.is_system else 'default'}.target",
    ]
    return "\n".join(lines) + "\n"


def _words_of_systemd(words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words):
        word = _specifier_free(word)
        yield _quoted(word.replace("$", "$$") if index else word)


def _specifier_free(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def render_launchd(service: Service) -> str:
    """A launch agent of the user."""
    agent = {
        "Label": service.name,
        "ProgramArguments": service.supervised,
        "WorkingDirectory": str(service.folder),
        "EnvironmentVariables": {"PATH": service.path},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 30,
        "ProcessType": "Background",
    }
    return plistlib.dumps(agent, sort_keys=False).decode()


def render_task(service: Service) -> str:
    """A task of Windows' Task Scheduler that runs when the user signs in."""
    command, *arguments = service.supervised
    settings = {
        "MultipleInstancesPolicy": "IgnoreNew",
        "DisallowStartIfOnBatteries": "false",
        "StopIfGoingOnBatteries": "false",
        "AllowHardTerminate": "true",
        "StartWhenAvailable": "true",
        "ExecutionTimeLimit": "PT0S",
        "RestartOnFailure": {"Interval": "PT1M", "Count": "255"},
    }
    running = {
        "Command": command,
        "Arguments": subprocess.list2cmdline(arguments),
        "WorkingDirectory": str(service.folder),
    }
    person = {"UserId": service.user, "LogonType": "InteractiveToken", "RunLevel": "LeastPrivilege"}
    task = ElementTree.Element("Task", version="1.2", xmlns=_TASK)
    _add_all(
        task,
        {
            "RegistrationInfo": {"Description": f"A2C-SMCP {service.kind}"},
            "Triggers": {"LogonTrigger": {"Enabled": "true", "UserId": service.user}},
            "Principals": {"Principal": person},
            "Settings": settings,
            "Actions": {"Exec": running},
        },
    )
    for element, name in ((task.find("Principals/Principal"), "id"), (task.find("Actions"), "Context")):
        assert element is not None
        element.set(name, "Author")
    ElementTree.indent(task)
    return '<?xml version="1.0" encoding="UTF-16"?>\n' + ElementTree.tostring(task, encoding="unicode") + "\n"


def _add_all(parent: ElementTree.Element, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        element = ElementTree.SubElement(parent, name)
        if isinstance(value, str):
            element.text = value
        else:
            _add_all(element, value)


# The three systems


class System(NamedTuple):
    """The services of a system. The functions return commands; a `logs` of `None` means the service's own file."""

    render: Callable[[Service], str]
    file: Callable[[Service], Path]
    install: Callable[[Service], list[list[str]]]
    remove: Callable[[Service], list[list[str]]]
    restart: Callable[[Service], list[list[str]]]
    status: Callable[[Service], list[str]]
    logs: Callable[[Service], list[str]] | None = None
    encoding: str = "utf-8"


def _systemctl(service: Service, *words: str) -> list[str]:
    return ["systemctl", *([] if service.is_system else ["--user"]), *words]


def _unit_file(service: Service) -> Path:
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    return (Path("/etc/systemd/system") if service.is_system else own) / f"{service.name}.service"


def _enable(service: Service) -> list[list[str]]:
    commands = [
        _systemctl(service, "daemon-reload"),
        _systemctl(service, "enable", service.name),
        _systemctl(service, "restart", service.name),
    ]
    return commands if service.is_system else [*commands, ["loginctl", "enable-linger", service.user]]


def _journal(service: Service) -> list[str]:
    return ["journalctl", *([] if service.is_system else ["--user"]), "--unit", service.name, "--no-pager", "-n", "200"]


def _gui(service: Service) -> str:
    return f"gui/{os.getuid() if hasattr(os, 'getuid') else 0}/{service.name}"


def _agent_file(service: Service) -> Path:
    return Path.home() / "Library" / "LaunchAgents" / f"{service.name}.plist"


def _schtasks(service: Service, action: str, *more: str) -> list[str]:
    return ["schtasks", action, "/TN", service.name, *more]


_SYSTEMD = System(
    render_systemd,
    _unit_file,
    _enable,
    lambda service: [_systemctl(service, "disable", "--now", service.name)],
    lambda service: [_systemctl(service, "restart", service.name)],
    lambda service: _systemctl(service, "status", service.name, "--no-pager", "--lines=0"),
    _journal,
)
SYSTEMS = {
    "linux": _SYSTEMD,
    "darwin": System(
        render_launchd,
        _agent_file,
        lambda service: [["launchctl", "bootstrap", _gui(service).rpartition("/")[0], str(_agent_file(service))]],
        lambda service: [["launchctl", "bootout", _gui(service)]],
        lambda service: [["launchctl", "kickstart", "-k", _gui(service)]],
        lambda service: ["launchctl", "print", _gui(service)],
    ),
    "win32": System(
        render_task,
        lambda service: _own_folder() / f"{service.kind}.xml",
        lambda service: [
            _schtasks(service, "/Create", "/F", "/XML", str(_own_folder() / f"{service.kind}.xml")),
            _schtasks(service, "/Run"),
        ],
        lambda service: [_schtasks(service, "/Delete", "/F")],
        lambda service: [_schtasks(service, "/End"), _schtasks(service, "/Run")],
        lambda service: _schtasks(service, "/Query", "/V", "/FO", "LIST"),
        encoding="utf-16",
    ),
}
"""By `sys.platform`."""


def installed() -> Iterator[tuple[Service, Path]]:
    """The services of this user, and of this system, with their files."""
    system = SYSTEMS.get(sys.platform, _SYSTEMD)
    for kind, is_system in [*((kind, False) for kind in Kind), (Kind.server, True)]:
        service = _known(kind, is_system=is_system)
        if (file := system.file(service)).is_file() and (not is_system or system is _SYSTEMD):
            yield service, file


_STARTS = re.compile(r"<Command>(.*?)</Command>|<array>\s*<string>(.*?)</string>|^ExecStart=(.*)$", re.MULTILINE)


def program_in(file: Path) -> str:
    """The program that the file of a service starts; empty if that cannot be read."""
    raw = file.read_bytes()
    found = _STARTS.search(raw.decode("utf-16" if raw.startswith(codecs.BOM_UTF16) else "utf-8", "replace"))
    if found is None:
        return ""
    return shlex.split(found[3])[0].replace("%%", "%") if found[3] else html.unescape(found[1] or found[2])


# The command

_HELP = """Have a Computer, a Server or both started at boot, and again after a crash.

    Examples:

    \b
    a2c-smcp service install up
    a2c-smcp service status
    """

service = typer.Typer(no_args_is_help=True, help=_HELP, rich_markup_mode="rich")

SystemWide = Annotated[bool, typer.Option("--system", help="Of the whole system, for a Server; needs root.")]
_KindArgument = Annotated[Kind, typer.Argument(metavar="computer|server|up", help="The command that is a service.")]
_Installed = Annotated[
    Kind | None, typer.Argument(metavar="[computer|server|up]", help="The service.", show_default="all")
]
_Words = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]...", help="The options of that command.")]
_TAKES_ALL = {"allow_interspersed_args": False, "ignore_unknown_options": True}


@service.command(context_settings=_TAKES_ALL)
def install(
    kind: _KindArgument,
    words: _Words = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    system: SystemWide = False,
) -> None:
    """Write a service that starts the command, and start it. What is written is shown first.

    The options behind the command are its own. Relative paths in them are of the current folder. A key is never
    written: name a file of it.

    Examples:

    \b
    a2c-smcp service install up
    a2c-smcp service install computer --url https://hub.example --key-file ~/hub.key --config servers.json
    a2c-smcp service install --yes server --keys-file keys.json
    """
    made, known = _wanted(kind, words or (), is_system=system), _here()
    file, text = known.file(made), known.render(made)
    put_text(f"{file}:\n\n{text}\n" + "\n".join(f"then: {shlex.join(command)}" for command in known.install(made)))
    if not (yes or sys.stdin.isatty()):
        raise WrongUse("Nothing is written: nobody can be asked here", "--yes before the command says yes.")
    if not yes:
        typer.confirm("Write and start it?", abort=True, err=True)
    _own_parent(file)
    if file.exists() and known is not _SYSTEMD:
        _carry_out(known.remove(made), is_needed=False)
    replace_file(file, text.encode(known.encoding), 0o644 if system else 0o600)
    _carry_out(known.install(made))
    Terminal().show(f"{made.name} runs, and is started again {'at boot' if known is _SYSTEMD else 'when you sign in'}")


def _wanted(kind: Kind, words: Sequence[str], *, is_system: bool) -> Service:
    """The service that is to be installed. Raises `WrongUse`, and `Failed` for variables that others may read."""
    plain = _known(kind, is_system=is_system)
    _variables(plain.variables)
    made = replace(plain, words=checked_words(kind, words, plain.variables))
    if is_system and (kind is not Kind.server or not plain.user or _here() is not _SYSTEMD):
        raise WrongUse("--system is for a Server under systemd, of a user that sudo names", "Run it with sudo.")
    return made


@service.command()
def status(kind: _Installed = None, system: SystemWide = False) -> None:
    """Show whether the services run, as the system says it.

    Examples:

    \b
    a2c-smcp service status
    a2c-smcp service status server --system
    """
    for made in _chosen(kind, is_system=system):
        _shown(_here().status(made))


@service.command()
def logs(kind: _Installed = None, system: SystemWide = False) -> None:
    """Print the end of the log.

    Examples:

    \b
    a2c-smcp service logs computer
    """
    for made in _chosen(kind, is_system=system):
        if command := _here().logs:
            _shown(command(made))
        elif made.log.exists():
            put_text(made.log.read_text("utf-8", "replace").rstrip("\n"))


@service.command()
def restart(kind: _Installed = None, system: SystemWide = False) -> None:
    """Stop the services and start them again.

    Examples:

    \b
    a2c-smcp service restart computer
    """
    for made in _chosen(kind, is_system=system):
        _carry_out(_here().restart(made))
        Terminal().show(f"{made.name} is started again")


@service.command()
def remove(kind: _Installed = None, system: SystemWide = False) -> None:
    """Stop the services, and start them no more. Logs and files of keys stay.

    Examples:

    \b
    a2c-smcp service remove computer
    """
    for made in _chosen(kind, is_system=system):
        _carry_out(_here().remove(made), is_needed=False)
        _here().file(made).unlink()
        if _here() is _SYSTEMD:
            _carry_out([_systemctl(made, "daemon-reload")], is_needed=False)
        Terminal().show(f"{made.name} is removed")


@service.command(context_settings=_TAKES_ALL, hidden=True)
def run(kind: _KindArgument, words: _Words = None) -> None:
    """Run the command, restart it after a crash, and keep its log: what the file of a service starts.

    Examples:

    \b
    a2c-smcp service run up --port 7100
    """
    made = _known(kind)
    private_folder(default_folder(), "services")
    environ = {**os.environ, **_variables(made.variables)}
    code = run_program(supervise([*made.launcher, kind.value, *(words or ())], made.log, environ))
    raise typer.Exit(0 if code == WRONG_USE else code)


def checked_words(kind: Kind, words: Sequence[str], variables: Path) -> list[str]:
    """The options of the command, and those that its variables hold now. Raises `WrongUse`, also for a secret."""
    app = typer.Typer(add_completion=False)
    app.command(kind.value)(getattr(import_module(f"a2c_smcp.cli.commands.{kind}"), kind.value))
    context: Any = typer.main.get_command(app).make_context(f"a2c-smcp {kind}", list(words))
    sources = {name: getattr(context.get_parameter_source(name), "name", "") for name in context.params}
    outweighed = {*options.outweighed(context, context.params)}
    taken = list(words)
    for option in context.command.params:
        source = "" if option.name in outweighed else sources.get(option.name)
        if source in ("COMMANDLINE", "ENVIRONMENT") and option.name in _SECRETS:
            _refuse_secret(kind, option.name, option.opts[0], variables)
        if source == "ENVIRONMENT":
            taken += _as_words(option.opts[0], context.params[option.name])
    if any(map(_PASSWORD.search, taken)):
        raise WrongUse("A URL with a password would be written into the service", _in_variables(variables))
    if not all(map(str.isprintable, taken)):
        raise WrongUse("An option holds what is not printable", "Leave that out.")
    return taken


def _refuse_secret(kind: Kind, name: str, flag: str, variables: Path) -> None:
    if name == "api_key":
        raise WrongUse(f"{flag} would write a key into the service", _KEY_FILES[kind])
    raise WrongUse(f"{flag} would write a key into the service", _in_variables(variables, _SECRETS[name]))


def _in_variables(variables: Path, name: str = "A2C_…") -> str:
    return f"Write {name}=… into {variables}, which only you may read, and leave out the option."


def _as_words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else []
    return [word for each in (value if isinstance(value, list | tuple) else [value]) for word in (flag, str(each))]


def _known(kind: Kind, *, is_system: bool = False) -> Service:
    return Service(
        kind=kind,
        launcher=invocation_for_programs(),
        words=(),
        folder=Path.cwd(),
        path=os.environ.get("PATH", os.defpath),
        user=os.environ.get("SUDO_USER", "") if is_system else getpass.getuser(),
        is_system=is_system,
        systemd=_systemd_version() if sys.platform == "linux" else _GROWING_SINCE,
    )


def _systemd_version() -> int:
    found = re.match(r"systemd (\d+)", _done(["systemctl", "--version"]).stdout) if shutil.which("systemctl") else None
    return int(found[1]) if found else 0


def _here() -> System:
    """Raises `Failed` on a system without services that are known."""
    if sys.platform not in SYSTEMS:
        raise Failed(f"Services of {sys.platform} are not known", "Have its own program start `a2c-smcp`.")
    return SYSTEMS[sys.platform]


def _chosen(kind: Kind | None, *, is_system: bool) -> list[Service]:
    """The services that are meant, and installed. Raises `Failed` if there are none."""
    found = [each for each, _ in installed() if kind in (None, each.kind) and each.is_system == is_system]
    if not found:
        what = f"There is no service {kind}" if kind else "There is no service"
        raise Failed(what, f"`a2c-smcp service install {kind or 'computer|server|up'}` makes one.")
    return found


def _own_parent(file: Path) -> None:
    """Make the folder of a file, and refuse one that others may change. Raises `Failed`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if remedy := remedy_for(file.parent):
        raise Failed(f"{file.parent} can be changed by others on this machine", f"Run: {remedy}")


def _carry_out(commands: Sequence[Sequence[str]], *, is_needed: bool = True) -> None:
    """Run commands of the system. Raises `Failed` with what one of them says."""
    for command in commands:
        done = _done(command)
        if done.returncode and is_needed:
            said = (done.stderr or done.stdout).strip() or f"it ended with code {done.returncode}"
            remedy = "Correct that, and run it again; its file stays as it was shown."
            raise Failed(f"{shlex.join(command)}: {said}", remedy)


def _done(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace")  # noqa: S603
    except FileNotFoundError:
        raise Failed(f"There is no program {command[0]} here", "Use what this system has in its place.") from None


def _shown(command: Sequence[str]) -> None:
    """Show what a command of the system prints."""
    done = _done(command)
    put_text((done.stdout + done.stderr).rstrip("\n"))


# Running without systemd


def _variables(file: Path) -> dict[str, str]:
    """The variables in a file of lines `NAME=value`. Raises `Failed` for one that others may read."""
    if not file.exists():
        return {}
    if os.name == "posix" and file.stat().st_mode & 0o077:
        raise Failed(f"Others on this machine can read {file}", f"Run: chmod 600 {shlex.quote(str(file))}")
    pairs = (line.strip().partition("=") for line in file.read_text("utf-8").splitlines())
    return {name: value for name, mark, value in pairs if mark and not name.startswith("#")}
