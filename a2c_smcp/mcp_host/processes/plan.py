"""The sandbox of a stdio server as its guard process needs it: which files, ports and limits, and what is not enforced.

`possible()` says what this machine can do. `planned` makes a `Sandbox` of the settings of a server, or raises
`NotSandboxed`, if a path is missing, or if the kernel cannot enforce what is `required`. The child enters it before
`exec` (`confinement`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from a2c_smcp.errors import NotPrivate
from a2c_smcp.files import default_folder, private_folder
from a2c_smcp.mcp_host.config.sandbox import ANY, UNIX, SandboxSettings, bytes_of
from a2c_smcp.mcp_host.failures import NotSandboxed
from a2c_smcp.mcp_host.processes import landlock, readable, syscall_filter
from a2c_smcp.protocol.escaping import one_line

logger = logging.getLogger(__name__)

_FILES_SINCE, _TCP_SINCE, _SIGNALS_SINCE = 3, 4, 6
_NO_STATE = "the folder for its temporary files cannot be made"
_TEMPORARY = ("TMPDIR", "TMP", "TEMP")
_OFFLINE = {
    "npm_config_offline": "true",
    "npm_config_update_notifier": "false",
    "npm_config_logs_max": "0",
    "UV_OFFLINE": "1",
}
"""For a server without a port: the programs that start it would wait for an answer of their registry."""
_CACHES = {
    "npx": ("npm_config_cache", (".npm",)),
    "uvx": ("UV_CACHE_DIR", (".cache/uv", ".local/share/uv")),
}
"""Programs that write to folders before they start a server: a variable that names the first, and the folders."""

_ORDERED = ("files", "ports", "unix", "watches", "modes", "memory", "processes")
"""Fields of a `Sandbox` that the guard process is told."""

Access = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Possible:
    """The means of this machine: the version of Landlock, 0 for none, and `filter` for a filter of system calls."""

    landlock: int
    filter: bool
    is_linux: bool = True

    @property
    def files(self) -> bool:
        return self.landlock >= _FILES_SINCE

    @property
    def ports(self) -> bool:
        return self.landlock >= _TCP_SINCE

    def missing(self, settings: SandboxSettings) -> list[str]:
        """Return the fields of these settings that cannot be enforced, each with what they need."""
        if not self.is_linux:
            return ["a sandbox: only Linux has one"]
        missing = []
        if not self.files and (settings.read != ANY or settings.write != ANY):
            missing.append(f"read and write: {_since(_FILES_SINCE)}")
        if not self.ports and settings.connect != ANY:
            missing.append(f"connect: {_since(_TCP_SINCE)}")
        return missing

    def gaps(self, settings: SandboxSettings) -> list[str]:
        """Return the gaps of a sandbox here, beyond the fields of its settings."""
        gaps = []
        if self.landlock and self.landlock < _SIGNALS_SINCE:
            gaps.append(f"signals to your other processes are not stopped: {_since(_SIGNALS_SINCE)}")
        if not self.filter:
            sockets = "" if settings.connect == ANY else "UDP, Unix sockets, listening, "
            gaps.append(
                f"{sockets}changes of modes and of limits of your other processes are not stopped: "
                "this kernel or processor has no known filter"
            )
        return gaps


def possible() -> Possible:
    if "_A2C_WITHOUT_LINUX" in os.environ:
        return Possible(0, False, is_linux=False)
    return Possible(landlock.abi(), syscall_filter.is_possible(), sys.platform == "linux")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The order for the guard process, the environment inside, and warnings about fields that are not enforced.

    `obstacles` are reasons why its program cannot start in it, each with a remedy.
    """

    files: tuple[tuple[str, str], ...]
    ports: tuple[int, ...] | None
    unix: bool
    watches: bool
    modes: bool
    memory: int | None
    processes: int | None
    can: Possible
    environment: Mapping[str, str]
    warnings: tuple[str, ...]
    obstacles: tuple[str, ...] = ()

    @property
    def spec(self) -> dict[str, Any] | None:
        """The order for the guard process; `None` where there are no sandboxes. Raises `NotSandboxed`."""
        if not self.can.is_linux:
            return None
        try:
            temporary = private_folder(default_folder(), "sandboxes")
        except (OSError, NotPrivate) as error:
            raise NotSandboxed(f"{_NO_STATE}: {error}; XDG_STATE_HOME names another place") from None
        return {
            **{name: getattr(self, name) for name in _ORDERED},
            "landlock": self.can.landlock > 0,
            "filter": self.can.filter,
            "temporary": str(temporary),
        }

    def allows(self, access: Access, path: str) -> bool:
        """True if a path is in a file or folder of the sandbox. Links are followed, as the kernel does."""
        target = Path(path).resolve()
        kinds = ("write", "device") if access == "write" else ("read", "write", "device")
        roots = (Path(root).resolve() for kind, root in self.files if kind in kinds)
        return any(target == root or root in target.parents for root in roots)


def planned(
    settings: SandboxSettings,
    *,
    command: str,
    args: Sequence[str],
    env: Mapping[str, str],
    configured: Mapping[str, str],
    cwd: str,
    can: Possible | None = None,
) -> Sandbox:
    """Return the sandbox of a server. `command` is an absolute path, `configured` the variables of its configuration.

    Raises `NotSandboxed`.
    """
    can = can or possible()
    is_any, named = settings.connect == ANY, settings.connect
    inside = {name: value for name, value in env.items() if name not in _TEMPORARY or name in configured}
    made = Sandbox(
        files=tuple(_files(settings, command, args, env, cwd)),
        ports=None if is_any else tuple(port for port in named if isinstance(port, int)),
        unix=is_any or UNIX in named,
        watches=bool(settings.read or settings.write),
        modes=bool(settings.write),
        memory=bytes_of(settings.memory),
        processes=settings.processes if isinstance(settings.processes, int) else None,
        can=can,
        environment=inside if named else {**_OFFLINE, **inside},
        warnings=_not_enforced(settings, can),
    )
    return replace(
        made,
        environment={**_without_git_files(made, env), **made.environment},
        obstacles=tuple(_obstacles(made, command, env)),
    )


def _without_git_files(made: Sandbox, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which git leaves out configuration that the sandbox refuses: it would end instead."""
    home = Path(env.get("HOME") or Path.home())
    of_user = (home / ".gitconfig", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "git" / "config")
    there = [str(path) for path in of_user if os.path.exists(path)]  # noqa: PTH110
    readable_ones = [path for path in there if made.allows("read", path)]
    variables = {}
    if made.can.files and len(readable_ones) < len(there):
        variables["GIT_CONFIG_GLOBAL"] = next(iter(readable_ones), os.devnull)
    system = env.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig")
    if made.can.files and os.path.exists(system) and not made.allows("read", system):  # noqa: PTH110
        variables["GIT_CONFIG_NOSYSTEM"] = "1"
    return variables


def _obstacles(made: Sandbox, command: str, env: Mapping[str, str]) -> Iterator[str]:
    if not made.can.files:
        return
    if not made.allows("read", command):
        yield (
            f"{command} leads to {Path(command).resolve()} by way of a folder that it may write to: "
            "name the folder of that program in sandbox.read"
        )
    if (name := Path(command).name) in _CACHES:
        variable, in_home = _CACHES[name]
        folders = [Path(env.get("HOME") or Path.home(), folder) for folder in in_home]
        folders[0] = Path(env.get(variable) or folders[0])
        if refused := next((folder for folder in folders if not made.allows("write", str(folder))), None):
            yield (
                f"{name} changes {refused} before it starts a server, which the sandbox refuses: "
                "`a2c-smcp add NAME --from-config` installs the package, and starts its program directly"
            )


def _not_enforced(settings: SandboxSettings, can: Possible) -> tuple[str, ...]:
    missing = can.missing(settings)
    if missing and settings.required:
        raise NotSandboxed(f'its sandbox cannot be enforced here: {"; ".join(missing)}; "required": false starts it')
    return tuple(f"not enforced: {gap}" for gap in (*missing, *can.gaps(settings)))


def _files(
    settings: SandboxSettings, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str
) -> Iterator[tuple[str, str]]:
    home = env.get("HOME") or str(Path.home())
    writable = () if settings.write == ANY else settings.write
    roots = [Path(_existing("write", path, home, cwd)).resolve() for path in writable]
    if settings.read == ANY:
        yield "read", os.path.sep
    else:
        yield from (("read", path) for path in _default_paths(home, readable.homes_of(env), roots))
        yield from (("read", path) for path in readable.of_program(command, args, env, cwd, roots))
        yield from (("read", _existing("read", path, home, cwd, roots)) for path in settings.read)
    yield from (("device", path) for path in readable.DEVICES if os.path.exists(path))  # noqa: PTH110
    yield from (("write", _existing("write", path, home, cwd, roots)) for path in writable)
    if settings.write == ANY:
        yield "write", os.path.sep


def _default_paths(home: str, homes: Sequence[Path], roots: Sequence[Path]) -> Iterator[str]:
    """Yield what every server may read. In a home folder that it may write to, a link could lead anywhere."""
    inside = (os.path.join(home, path) for path in readable.IN_HOME)  # noqa: PTH118
    for path in (*readable.SYSTEM, *inside):
        is_open = readable.is_private(Path(path), homes) or readable.follows_link_in(Path(path), roots)
        if os.path.exists(path) and not is_open:  # noqa: PTH110
            yield path


def _existing(field: str, path: str, home: str, cwd: str, roots: Sequence[Path] = ()) -> str:
    """Return the absolute path. `~` is the home folder; any other relative path begins at the working directory."""
    whole = home + path[1:] if path == "~" or path.startswith("~/") else os.path.join(cwd, path)  # noqa: PTH118
    if not os.path.exists(whole):  # noqa: PTH110
        raise NotSandboxed(f"sandbox.{field}: {path!r} does not exist; make it, or take it out")
    if readable.follows_link_in(Path(whole), roots):
        raise NotSandboxed(f"sandbox.{field}: {path!r} is a link that the server may have made; name where it leads")
    target, state = Path(whole).resolve(), default_folder().resolve()
    if target == state or state in target.parents or (field == "write" and target in state.parents):
        raise NotSandboxed(
            f"sandbox.{field}: {path!r} would open {state}, which has keys, approvals and the temporary files of other "
            "servers; name the folders beside it that the server needs"
        )
    return whole


def _since(version: int) -> str:
    linux, _ = landlock.BY_ABI[version]
    return f"needs Linux {linux} with Landlock"


# The paths that a sandbox has probably refused, for its owner's log.
#
# The kernel tells a user nothing of refusals: only root reads its audit log. So this reads what the server says, on
# stderr and in its answers: a line about missing permission that names a path, which is not in the sandbox and
# exists, or could be made in a folder that exists. A server may say anything, so the words are "seems to want". The
# path is logged, never the line, which may hold a secret.

_HINTS = (b"ermission denied", b"EACCES", b"ermissionError", b"not permitted", b"EPERM")
_PATH = re.compile(r"""'(/[^'\n]+)'|"(/[^"\n\\]+)"|(?<![\w./])(/[^\s'",:;)\\]+)""")
_LONGEST_LINE = 4096
_MOST_LINES = 100
"""Lines of one piece of output that are looked at: each of their paths is looked up on the disk."""
_MOST = 20
_LONGEST_PATH = 300


class RefusedPaths:
    """Reads the output of one process of a server. `warnings` are sentences for the owner.

    They are logged, too, except those that were `told` already.
    """

    def __init__(self, name: str, sandbox: Sandbox, told: Collection[str] = ()) -> None:
        self._name = name
        self._sandbox = sandbox
        self._seen: set[str] = set()
        self._told = frozenset(told)
        self.warnings: list[str] = []
        for warning in (*sandbox.warnings, *sandbox.obstacles):
            self._tell(warning)

    def read(self, data: bytes) -> None:
        """Look for refusals in a piece of output. One that is cut in half is not found."""
        if len(self._seen) >= _MOST or not any(hint in data for hint in _HINTS):
            return
        for line in [line for line in data.split(b"\n") if any(hint in line for hint in _HINTS)][:_MOST_LINES]:
            for found in _PATH.findall(line[:_LONGEST_LINE].decode("utf-8", "replace")):
                self._add(next(filter(None, found)))

    def _add(self, path: str) -> None:
        is_there = os.path.lexists(path)
        folder = os.path.dirname(path.rstrip(os.path.sep))  # noqa: PTH120
        # A name directly below the root that does not exist is no path, but a word.
        could_be_made = folder != os.path.sep and os.path.isdir(folder)  # noqa: PTH112
        if path in self._seen or len(self._seen) >= _MOST or not (is_there or could_be_made):
            return
        self._seen.add(path)
        if is_there and not self._sandbox.allows("read", path):
            self._warn("read", path)
        elif not self._sandbox.allows("write", path):
            self._warn("write", path)

    def _warn(self, access: str, path: str) -> None:
        shown = one_line(path, _LONGEST_PATH)
        self._tell(f"it seems to want to {access} {shown}, which its sandbox refuses (sandbox.{access})")

    def _tell(self, warning: str) -> None:
        self.warnings.append(warning)
        if warning not in self._told:
            logger.warning("%s: sandbox: %s", self._name, warning)
