"""Programs whose configurations can be imported: where their files are, what they fill in, and what is in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from pathlib import Path
from typing import Any

from a2c_smcp.computer.configuration.files import GROUPS, FileEntry, read_data, sections_of
from a2c_smcp.errors import ConfigError


class Fills(Flag):
    """The references that a program replaces in its configuration."""

    NOTHING = 0
    BARE = auto()
    """`${VAR}` and `${VAR:-default}`, from the environment."""
    ENV = auto()
    """`${env:VAR}`, from the environment."""
    EDITOR = auto()
    """`${workspaceFolder}`, `${userHome}` and the like."""


@dataclass(frozen=True)
class Program:
    """A program whose configuration can be imported.

    `paths` are its files in order of priority, highest first; `{home}`, `{config}` and `{folder}` depend on the
    machine. `also` are other path endings that identify a file of this program. `group` is the key of its servers.
    """

    name: str
    title: str
    fills: Fills
    paths: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    group: str = "mcpServers"

    def files(self, machine: Machine) -> list[Path]:
        places = {"home": machine.home, "config": machine.config, "folder": machine.folder}
        return [Path(path.format(**places)) for path in self.paths]

    def user_file(self, machine: Machine) -> Path:
        """The file with the servers of this user in all projects."""
        return self.files(machine)[-1]


@dataclass(frozen=True)
class Machine:
    """The folders of this machine: `config` has the settings of applications, `folder` is the project."""

    home: Path
    config: Path
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def here(
        cls,
        environ: Mapping[str, str] = os.environ,
        platform: str = sys.platform,
        folder: Path | None = None,
    ) -> Machine:
        home = Path(environ.get("USERPROFILE" if platform == "win32" else "HOME") or environ.get("HOME") or Path.home())
        return cls(home, _config(environ, platform, home), folder or Path.cwd(), environ)


def _config(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    if platform == "darwin":
        return home / "Library" / "Application Support"
    if platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")


_DESKTOP_FILE = "claude_desktop_config.json"
PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "claude-desktop", "Claude Desktop", Fills.NOTHING, (f"{{config}}/Claude/{_DESKTOP_FILE}",), (_DESKTOP_FILE,)
        ),
        Program(
            "claude-code", "Claude Code", Fills.BARE, ("{folder}/.mcp.json", "{home}/.claude.json"), (".claude.json",)
        ),
        Program("cursor", "Cursor", Fills.ENV | Fills.EDITOR, ("{folder}/.cursor/mcp.json", "{home}/.cursor/mcp.json")),
        Program(
            "vscode",
            "VS Code",
            Fills.ENV | Fills.EDITOR,
            ("{folder}/.vscode/mcp.json", "{config}/Code/User/mcp.json"),
            ("Code/User/mcp.json",),
            group="servers",
        ),
    )
}
CLIENTS = PROGRAMS | {
    program.name: program
    for program in (
        Program(
            "codex",
            "Codex",
            Fills.NOTHING,
            ("{folder}/.codex/config.toml", "{home}/.codex/config.toml"),
            group="mcp_servers",
        ),
        Program("gemini", "Gemini CLI", Fills.BARE, ("{folder}/.gemini/settings.json", "{home}/.gemini/settings.json")),
        Program(
            "opencode",
            "opencode",
            Fills.NOTHING,
            ("{folder}/opencode.json", "{home}/.config/opencode/opencode.json"),
            group="mcp",
        ),
    )
}
"""Programs that can use an office. Those that are no `PROGRAMS` write their servers in a form of their own."""
PLAIN = Program("file", "a file", Fills.BARE | Fills.ENV | Fills.EDITOR)
"""A file of an unknown program: all kinds of references are replaced."""


def program_of(path: Path) -> Program:
    """The program of a file, by its path."""
    return next((program for program in PROGRAMS.values() if _is_of(program, path)), PLAIN)


def _is_of(program: Program, path: Path) -> bool:
    ends = [*program.also, *(path.removeprefix("{folder}/") for path in program.paths if path.startswith("{folder}"))]
    whole = path.absolute().as_posix()
    return any(whole.endswith(f"/{end}") for end in ends)


@dataclass(frozen=True)
class Document:
    """The contents of one file. `folder` is its project, `left_out` are its keys that are not about MCP servers."""

    path: Path
    program: Program
    folder: Path
    servers: Mapping[str, Any] = field(repr=False)
    inputs: tuple[Any, ...] = field(default=(), repr=False)
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts_first: bool = False


def read_documents(paths: Iterable[Path], machine: Machine) -> list[Document]:
    """The contents of the files, the one that wins first. Raises `ConfigError` naming file and place."""
    found = [document for path in paths for document in _documents(path, machine)]
    return sorted(found, key=lambda document: not document.counts_first)


def _documents(path: Path, machine: Machine) -> Iterator[Document]:
    data, program = read_data(path), program_of(path)
    empty = Document(path, program, _project(path, machine), {})
    try:
        if isinstance(data, dict) and "projects" in data and program is PROGRAMS["claude-code"]:
            yield from _of_claude_code(empty, data, machine.folder)
        else:
            yield _document(empty, data)
    except ConfigError as error:
        raise ConfigError(error.about, subject=str(path)) from None


def _document(empty: Document, data: object) -> Document:
    inner = data.get("mcp") if isinstance(data, dict) else None  # the settings.json of older VS Code
    if isinstance(data, dict) and isinstance(inner, dict) and data.keys().isdisjoint(GROUPS):
        return replace(_document(empty, inner), left_out=tuple(key for key in data if key != "mcp"))
    sections = sections_of(data)
    inputs = tuple(entry.data for entry in sections.inputs)
    return replace(empty, servers=_by_name(sections.servers), inputs=inputs, left_out=sections.others)


def _by_name(entries: Iterable[FileEntry]) -> dict[str, Any]:
    """Servers by name. If both groups of a file have the same name, the first counts."""
    servers: dict[str, Any] = {}
    listed: set[str] = set()
    for entry in entries:
        name = entry.name
        if name is None:
            server = entry.data
            if not isinstance(server, dict) or "name" not in server or str(server["name"]) in listed:
                raise ConfigError("every server in a list needs a name of its own")
            name = str(server["name"])
            listed.add(name)
        servers.setdefault(name, entry.data)
    return servers


def _of_claude_code(empty: Document, data: dict[str, Any], folder: Path) -> Iterator[Document]:
    """`~/.claude.json` has servers for all projects, and servers for single projects, which win."""
    projects = data["projects"] if isinstance(data["projects"], dict) else {}
    of = {
        Path(key): servers
        for key, project in projects.items()
        if isinstance(project, dict) and isinstance(servers := project.get("mcpServers"), dict) and servers
    }
    if own := of.pop(folder, None):
        yield replace(empty, servers=own, counts_first=True)
    others = sorted(map(str, of))
    notes = (f"servers of other projects are not taken, run it there: {', '.join(others)}",) if others else ()
    everywhere = _document(empty, {key: value for key, value in data.items() if key != "projects"})
    yield replace(everywhere, notes=notes)


def _project(path: Path, machine: Machine) -> Path:
    """The project of a file: the folder that has `.vscode`, `.cursor` or `.mcp.json`."""
    parent = path.absolute().parent
    if parent.name in (".vscode", ".cursor") and parent.parent != machine.home:
        return parent.parent
    return parent if path.name == ".mcp.json" else machine.folder
