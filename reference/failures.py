"""The page of errors, generated from their classes and the advice of the command line."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import a2c_smcp
from a2c_smcp.cli.errors import explained
from a2c_smcp.errors import SMCPError
from reference import markdown
from reference.markdown import code, table

__all__ = ["page"]

_INTRODUCTION = """\
Each error is a class, identified on the wire by its code and the beginning of its message. `except` also catches
subclasses: `except Forbidden` catches `OfficeHasAgent` too. `error.code`, `error.message` and `error.details` describe
the error; `SMCPError.from_wire(answer)` returns an instance of the class that the other side raised. For a tool call,
`error.outcome` says whether the tool has run: `not_run`, `unknown`, or (410 only) `done`.

A failing tool is not a protocol error: it returns a result with `isError`."""
_TRIED = {"url": "URL", "office": "OFFICE"}
_PROGRAMS = ("a2c_smcp.cli", "a2c_smcp.__main__")
"""The programs print sentences; their exceptions are not part of the API."""


def page() -> str:
    tree = [*_tree(SMCPError, 0)]
    own = [row for row in tree if row[0].__module__ == SMCPError.__module__]
    others = dict.fromkeys(cls for cls, _ in tree if cls.__module__ != SMCPError.__module__)
    return markdown.page(
        "Errors",
        _INTRODUCTION,
        "## Protocol errors\n\nIn `a2c_smcp.errors`.",
        table(["class", "code", "message begins with"], [_row(*each) for each in own]),
        "## Errors of single packages\n\n`except` for a base class catches each of them.",
        table(["class", "code", "base classes", "message begins with", "in"], [*map(_part, others)]),
        "## Messages of the command line",
        "Each message states the error and a remedy; `…` stands for the subject of the error.",
        table(["code", "class", "says"], _sayings([cls for cls, _ in own])),
    )


def _tree(cls: type[SMCPError], depth: int) -> Iterator[tuple[type[SMCPError], int]]:
    if depth == 0:
        _import_all()
    yield cls, depth
    for child in sorted(cls.__subclasses__(), key=lambda each: (each.code, each.__name__)):
        if child.__module__.startswith("a2c_smcp.") and not child.__module__.startswith(_PROGRAMS):
            yield from _tree(child, depth + 1)


def _import_all() -> None:
    for module in pkgutil.walk_packages(a2c_smcp.__path__, "a2c_smcp."):
        if not module.name.startswith(_PROGRAMS):
            importlib.import_module(module.name)


def _row(cls: type[SMCPError], depth: int) -> tuple[str, str, str]:
    return f"{'&nbsp;' * 3 * depth}{code(cls.__name__)}", str(cls.code), cls.title


def _part(cls: type[SMCPError]) -> tuple[str, ...]:
    above = ", ".join(code(base.__name__) for base in cls.__bases__ if issubclass(base, SMCPError))
    return code(cls.__name__), str(cls.code), above, cls.title, code(_home(cls))


def _home(cls: type[SMCPError]) -> str:
    """Where to import it from: the package, if that offers it."""
    package = cls.__module__.rpartition(".")[0]
    offered = getattr(importlib.import_module(package), "__all__", ())
    return package if cls.__name__ in offered else cls.__module__


def _sayings(classes: list[type[SMCPError]]) -> list[tuple[str, str, str]]:
    """Without errors that have only general advice: the commands add more specific advice to them."""
    general = _saying(SMCPError).rpartition("… ")[2]
    found = [(cls, _saying(cls)) for cls in sorted(classes, key=lambda cls: cls.code)]
    return [(str(cls.code), code(cls.__name__), said) for cls, said in found if not said.endswith(general)]


def _saying(cls: type[SMCPError]) -> str:
    return str(explained(cls("…"), _TRIED)).replace("….", "…")
