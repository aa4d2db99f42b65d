"""The programs whose configurations are known: where each keeps its files, and what it fills in by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path

__all__ = ["PLAIN", "PROGRAMS", "Fills", "Machine", "Program", "program_of"]


class Fills(Flag):
    """What a program replaces in the texts of its configuration before it uses them."""

    NOTHING = 0
    BARE = auto()
    """`${VAR}` and `${VAR:-default}`, from the environment."""
    ENV = auto()
    """`${env:VAR}`, from the environment."""
    EDITOR = auto()
    """`${workspaceFolder}`, `${userHome}` and the like."""


@dataclass(frozen=True)
class Program:
    """`paths` are its files, the one that counts most first; `{home}`, `{config}` and `{folder}` depend on the machine.

    `also` are ends of paths by which a file is recognised that was named.
    """

    name: str
    title: str
    fills: Fills
    paths: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def files(self, machine: Machine) -> list[Path]:
        places = {"home": machine.home, "config": machine.config, "folder": machine.folder}
        return [Path(path.format(**places)) for path in self.paths]


@dataclass(frozen=True)
class Machine:
    """Where things are: `config` is the folder of applications' settings, `folder` the project."""

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
        ),
    )
}
PLAIN = Program("file", "a file", Fills.BARE | Fills.ENV | Fills.EDITOR)
"""Of a file that could be anybody's, everything is filled in."""


def program_of(path: Path) -> Program:
    """Whose file this is, by its name."""
    return next((program for program in PROGRAMS.values() if _is_of(program, path)), PLAIN)


def _is_of(program: Program, path: Path) -> bool:
    ends = [*program.also, *(path.removeprefix("{folder}/") for path in program.paths if path.startswith("{folder}"))]
    whole = path.absolute().as_posix()
    return any(whole.endswith(f"/{end}") for end in ends)
