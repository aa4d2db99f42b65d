"""The page of all modules, generated from their docstrings."""

from __future__ import annotations

import ast
import tokenize
from inspect import cleandoc
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
    return " ".join(_docstring(module).partition("\n\n")[0].split())


def _docstring(module: Path) -> str:
    """That of a module without an import before it. The rest of the module is not read: there are hundreds."""
    with tokenize.open(module) as file:
        first = next(tokenize.generate_tokens(file.readline))
    return cleandoc(ast.literal_eval(first.string)) if first.type == tokenize.STRING else ""
