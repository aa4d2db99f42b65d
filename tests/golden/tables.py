"""The help of all commands, and the error classes."""

from __future__ import annotations

import importlib
import os
import pkgutil
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from unittest.mock import patch

import a2c_smcp
from a2c_smcp.cli import main
from a2c_smcp.errors import SMCPError

__all__ = ["tables"]

_PLAIN = (
    (r"\x1b\[[\d;]*m|[│╰╯─]", ""),
    (r" +", " "),
    (r" (?=\n)", ""),
    (r"\n{3,}", "\n\n"),
)
"""Colours, frames and spaces are left out, so that an option is one line."""


def tables() -> dict[str, str]:
    here = patch.object(sys.modules["__main__"], "__package__", "")  # otherwise the help says how Python was started
    with here, patch.dict(os.environ, {"COLUMNS": "500"}):
        helps = "\n".join(_helps("a2c-smcp"))
    return {"help.txt": helps, "errors.txt": "".join(sorted(_errors()))}


def _helps(*words: str) -> Iterator[str]:
    """The help of a command, and of those below it that it names."""
    shown = StringIO()
    with patch.object(sys, "argv", [*words, "--help"]), redirect_stdout(shown), suppress(SystemExit):
        main()
    text = re.sub(r"╭─ (.+?) ─+╮", r"[\1]", shown.getvalue())
    text = re.sub(rf"\[default: \(?{re.escape(platform.node())}\)?\]", "[default: (name of this machine)]", text)
    for pattern, plain in _PLAIN:
        text = re.sub(pattern, plain, text)
    yield f"$ {' '.join(words)} --help\n{text}"
    for name in re.findall(r"^ (\S+)", text.partition("[Commands]\n")[2], re.MULTILINE):
        yield from _helps(*words, name)


def _errors() -> Iterator[str]:
    for module in pkgutil.walk_packages(a2c_smcp.__path__, "a2c_smcp."):
        if not module.name.startswith("a2c_smcp.__main__") and "mcp_servers" not in module.name:
            importlib.import_module(module.name)
    for cls in _tree(SMCPError):
        if cls.__module__.startswith("a2c_smcp.") and not cls.__module__.startswith("a2c_smcp.cli."):
            bases = ", ".join(base.__name__ for base in cls.__bases__ if base.__name__[0] != "_")
            more = f", also at the top: {', '.join(cls.lifted)}" if cls.lifted else ""
            yield f"{cls.code} {cls.__name__}({bases}): {cls.title!r}, {cls.default_outcome}{more}\n"


def _tree(cls: type[SMCPError]) -> set[type[SMCPError]]:
    return {cls}.union(*map(_tree, cls.__subclasses__()))
