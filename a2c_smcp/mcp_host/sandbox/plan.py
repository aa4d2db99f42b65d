"""The sandbox of a stdio server as its guard process needs it: which files, ports and limits, and what is not enforced.

`possible()` says what this machine can do. `planned` makes a `Sandbox` of the settings of a server, or raises
`NotSandboxed`, if a path is missing, or if the kernel cannot enforce what is `required`. The child enters it before
`exec` (`confinement`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from a2c_smcp.mcp_host.config.sandbox import ANY, UNIX, SandboxSettings, bytes_of
from a2c_smcp.mcp_host.failures import NotSandboxed
from a2c_smcp.mcp_host.processes import landlock, syscall_filter
from a2c_smcp.mcp_host.sandbox import readable

__all__ = ["Possible", "Sandbox", "planned", "possible"]

_FILES_SINCE, _TCP_SINCE, _SIGNALS_SINCE = 3, 4, 6
_TEMPORARY = ("TMPDIR", "TMP", "TEMP")
_OFFLINE = {
    "npm_config_offline": "true",
    "npm_config_update_notifier": "false",
    "npm_config_logs_max": "0",
    "UV_OFFLINE": "1",
}
"""For a server without a port: the programs that start it would wait for an answer of their registry."""
_CACHES = {
    "npx": ("npm_config_cache", (".npm",), "npm install"),
    "uvx": ("UV_CACHE_DIR", (".cache/uv", ".local/share/uv"), "uv tool install"),
}
"""Programs that write to folders before they start a server: a variable that names the first, the folders, and what
installs the server without them."""

Access = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Possible:
    """What this machine can enforce: the version of Landlock, 0 for none, and whether calls can be filtered."""

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
        """Return which fields of these settings cannot be enforced, each with what would."""
        found = []
        if not self.is_linux:
            return ["a sandbox: only Linux has one"]
        if not self.files and (settings.read != ANY or settings.write != ANY):
            found.append(f"read and write: {_since(_FILES_SINCE)}")
        if not self.ports and settings.connect != ANY:
            found.append(f"connect: {_since(_TCP_SINCE)}")
        return found

    def gaps(self, settings: SandboxSettings) -> list[str]:
        """Return what a sandbox leaves open here, beyond the fields of its settings."""
        found = []
        if self.landlock and self.landlock < _SIGNALS_SINCE:
            found.append(f"signals to your other processes are not stopped: {_since(_SIGNALS_SINCE)}")
        if not self.filter:
            sockets = "" if settings.connect == ANY else "UDP, Unix sockets, listening, "
            found.append(
                f"{sockets}changes of modes and of limits of your other processes are not stopped: "
                "this kernel or processor has no known filter"
            )
        return found


def possible() -> Possible:
    return Possible(landlock.abi(), syscall_filter.is_possible(), sys.platform == "linux")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the guard process is given, the environment inside, and sentences on what is not enforced."""

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

    @property
    def spec(self) -> dict[str, Any] | None:
        """What the guard process is given; `None` where there are no sandboxes."""
        if not self.can.is_linux:
            return None
        return {
            "files": [[kind, path] for kind, path in self.files],
            "ports": None if self.ports is None else [*self.ports],
            "unix": self.unix,
            "watches": self.watches,
            "modes": self.modes,
            "memory": self.memory,
            "processes": self.processes,
            "landlock": self.can.landlock > 0,
            "filter": self.can.filter,
            "temporary": tempfile.gettempdir(),
        }

    def allows(self, access: Access, path: str) -> bool:
        """Return whether a path is in a file or folder of the sandbox. Links are followed, as the kernel does."""
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
    return replace(made, warnings=(*made.warnings, *_about_program(made, command, env)))


def _about_program(made: Sandbox, command: str, env: Mapping[str, str]) -> Iterator[str]:
    """What keeps a program from starting in its sandbox, and what to do."""
    if not made.can.files:
        return
    if not made.allows("read", command):
        yield (
            f"{command} leads to {Path(command).resolve()} by way of a folder that it may write to: "
            "name the folder of that program in sandbox.read"
        )
    if (name := Path(command).name) in _CACHES:
        variable, in_home, install = _CACHES[name]
        folders = [Path(env.get("HOME") or Path.home(), each) for each in in_home]
        folders[0] = Path(env.get(variable) or folders[0])
        if refused := next((each for each in folders if not made.allows("write", str(each))), None):
            yield (
                f"{name} changes {refused} before it starts a server, which the sandbox refuses: "
                f"install the package with `{install}`, and name its program as the command"
            )


def _not_enforced(settings: SandboxSettings, can: Possible) -> tuple[str, ...]:
    missing = can.missing(settings)
    if missing and settings.required:
        raise NotSandboxed(f'its sandbox cannot be enforced here: {"; ".join(missing)}; "required": false starts it')
    return tuple(f"not enforced: {each}" for each in (*missing, *can.gaps(settings)))


def _files(
    settings: SandboxSettings, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str
) -> Iterator[tuple[str, str]]:
    home = env.get("HOME") or str(Path.home())
    writable = () if settings.write == ANY else settings.write
    roots = [Path(_existing("write", path, home, cwd)).resolve() for path in writable]
    if settings.read == ANY:
        yield "read", os.path.sep
    else:
        yield from (("read", path) for path in _default_paths(home, readable.homes_of(env)))
        yield from (("read", path) for path in readable.of_program(command, args, env, cwd, roots))
        yield from (("read", _existing("read", path, home, cwd, roots)) for path in settings.read)
    yield from (("device", path) for path in readable.DEVICES if os.path.exists(path))  # noqa: PTH110
    yield from (("write", _existing("write", path, home, cwd, roots)) for path in writable)
    if settings.write == ANY:
        yield "write", os.path.sep


def _default_paths(home: str, homes: Sequence[Path]) -> Iterator[str]:
    inside = (os.path.join(home, path) for path in readable.IN_HOME)  # noqa: PTH118
    for path in (*readable.SYSTEM, *inside):
        if os.path.exists(path) and not readable.is_private(Path(path), homes):  # noqa: PTH110
            yield path


def _existing(field: str, path: str, home: str, cwd: str, roots: Sequence[Path] = ()) -> str:
    """Return the absolute path. `~` is the home folder; any other relative path begins at the working directory."""
    whole = home + path[1:] if path == "~" or path.startswith("~/") else os.path.join(cwd, path)  # noqa: PTH118
    if not os.path.exists(whole):  # noqa: PTH110
        raise NotSandboxed(f"sandbox.{field}: {path!r} does not exist; make it, or take it out")
    if readable.follows_link_in(Path(whole), roots):
        raise NotSandboxed(f"sandbox.{field}: {path!r} is a link that the server may have made; name where it leads")
    return whole


def _since(version: int) -> str:
    linux, _ = landlock.BY_ABI[version]
    return f"needs Linux {linux} with Landlock"
