"""The page of all modules, generated from their docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from reference import markdown
from reference.markdown import code, table

__all__ = ["page"]

_PACKAGE = Path(__file__).parents[1] / "a2c_smcp"
_INTRODUCTION = """\
What each folder and each module of the package owns, in its own words. ARCHITECTURE.md in the repository says how they
work together."""


def page() -> str:
    folders = sorted(path.parent for path in _PACKAGE.rglob("__init__.py"))
    return markdown.page("Map of the modules", _INTRODUCTION, *map(_folder, folders))


def _folder(folder: Path) -> str:
    modules = sorted(path for path in folder.glob("*.py") if not path.name.startswith("__"))
    rows = [[code(path.name), _first_paragraph(path)] for path in modules]
    about = _first_paragraph(folder / "__init__.py")
    return f"## {folder.relative_to(_PACKAGE.parent)}\n\n{about}\n\n{table(['module', 'owns'], rows) if rows else ''}"


def _first_paragraph(module: Path) -> str:
    said = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    return " ".join(said.partition("\n\n")[0].split())
