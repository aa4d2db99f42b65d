"""The page of the command line, generated from the commands."""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
import typer.main

from a2c_smcp.cli.app import build
from reference import markdown
from reference.markdown import THIS_MACHINE, code, fence, table

__all__ = ["environment", "page"]

_INTRODUCTION = """\
Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 failed or stopped, 2 usage error. An option
with an environment variable can also be set there. `NO_COLOR` is honoured."""
_BLOCK = "\b"
_NAMES = re.compile(r"(`[^`]*`)|(?<![\w-])(--[a-z][a-z-]*|A2C_[A-Z_]+)")
_KINDS: dict[Any, str] = {int: "NUMBER", float: "NUMBER", Path: "FILE"}


def page() -> str:
    return markdown.page("Command line", _INTRODUCTION, *(_section(*found) for found in _commands()))


def environment() -> list[tuple[str, str, str]]:
    """Every environment variable of an option: its name, the option, and the commands that have it."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for path, command in _commands():
        for option in _options(command):
            if isinstance(option.envvar, str):
                found.setdefault((option.envvar, option.opts[0]), {})[path.split()[1]] = None
    return [(variable, flag, ", ".join(sorted(commands))) for (variable, flag), commands in sorted(found.items())]


def _commands() -> Iterator[tuple[str, Any]]:
    yield from _below("a2c-smcp", typer.main.get_command(build()))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", child)


def _section(path: str, command: Any) -> str:
    level = "#" * max(2, len(path.split()))
    parts = [f"{level} {path}", _told(inspect.cleandoc(command.help or ""))]
    if own := [(code(each.name.upper()), _marked(each.help or "")) for each in _arguments(command)]:
        parts.append(table(["argument", "means"], own))
    columns = ["option", "means", "default", "environment"]
    parts.append(table(columns, [_row(option) for option in _options(command)]))
    return "\n\n".join(part for part in parts if part)


def _told(text: str) -> str:
    """The help text; a paragraph after `\\b` is a block of examples."""
    told: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        is_block = lines[0].strip() == _BLOCK
        told.append(fence("sh", inspect.cleandoc("\n".join(lines[1:]))) if is_block else _marked(" ".join(lines)))
    return "\n\n".join(told)


def _marked(text: str) -> str:
    """Options and variables as code, which the help on a terminal does not mark."""
    return _NAMES.sub(lambda found: found[1] or code(found[2]), text)


def _arguments(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument" and not each.hidden]


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option" and not each.hidden]


def _row(option: Any) -> tuple[str, str, str, str]:
    """An option without a value is a flag, and off by default."""
    spelled = ", ".join(option.opts) + (f" / {', '.join(option.secondary_opts)}" if option.secondary_opts else "")
    wants = "" if option.is_flag else f" {option.metavar or _wanted(option.type_descriptor.annotation)}"
    again = " May be repeated." if option.multiple and "repeat" not in (option.help or "") else ""
    required = "required" if option.required else code(_default(option))
    return code(spelled + wants), _marked(option.help or "") + again, required, code(option.envvar or "")


def _wanted(kind: Any) -> str:
    """The kind of value that an option takes, as its help shows it."""
    if get_origin(kind) is Literal:
        return "/".join(get_args(kind))
    inner = [each for each in get_args(kind) if each is not type(None)]
    if inner:
        return _wanted(inner[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "/".join(str(each.value) for each in kind)
    return _KINDS.get(kind, "TEXT")


def _default(option: Any) -> str:
    if platform.node() in (option.default, option.show_default) and option.name == "name":
        return THIS_MACHINE
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.default
    if default is None or default is False or default == "" or option.is_flag or callable(default):
        return ""
    return str(default.value if isinstance(default, Enum) else default)
