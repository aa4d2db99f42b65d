"""Every English text of the consoles has a Chinese one, and no Chinese text is left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from a2c_smcp.computer.configuration import additions
from a2c_smcp.computer.consent.risk import CLAIMED, EFFECTS, UNUSUAL
from a2c_smcp.computer.questions.forms import Field
from a2c_smcp.console import pages, sign_in
from a2c_smcp.console.pages import chinese
from a2c_smcp.mcp_events import CallEnd, CallState
from a2c_smcp.mcp_host.status import State
from a2c_smcp.protocol.results import call_result

FOLDER = Path(pages.__file__).parent
TEXTS = {
    "words": (0,),
    "Page": (1,),
    "notice_page": (2,),
    "_sentence": (1,),
    "asked_twice": (1,),
    "search_form": (1,),
    "row_table": (3,),
    "button": (1,),
    "field": (0, 2),
    "wide": (1, 2, 3),
    "choice": (1,),
    "Said": (0,),
}
"""Functions that say a text, and the places of English texts among their arguments."""
TABLES = dict.fromkeys(("_LASTS", "_NETWORK", "_DAYS", "_ROLES", "_OPERATORS", "_RIGHTS"), "values")
TABLES["account"] = "keys"
"""Tables of texts."""
LIMITS = (("minLength", "maxLength"), ("minimum", "maximum"))
SCHEMAS = [
    {"type": kind, **{key: bounds[place] for place, key in enumerate(keys) if bounds[place]}}
    for kind, keys in (("string", LIMITS[0]), ("integer", LIMITS[1]), ("number", LIMITS[1]))
    for bounds in ((0, 0), (1, 0), (0, 2), (1, 2), (2, 2))
]
FORMATS = [{"type": "string", "format": each} for each in ("email", "uri", "date", "date-time")]
HINTS = {Field("x", each, False, False).hint.text for each in (*SCHEMAS, *FORMATS, {"type": "object"})} - {"text"}
"""What a field says that it expects. A text without limits is said nowhere."""
COMPUTED: Mapping[str, frozenset[str]] = {
    "owner": frozenset(
        [
            *get_args(State),
            *get_args(CallState),
            *get_args(CallEnd),
            "allow",
            "ask",
            "deny",
            "Question",
            "Window",
            "Description",
            CLAIMED,
            *UNUSUAL.values(),
            *(text for _, text in EFFECTS.values()),
            "an answer is needed",
            *("publisher", "source", "checksum", "packages", "command", "reads", "writes", "network", "sandbox"),
            *("sees", "file", "data"),
            *("prompt", "console", "program"),
            *HINTS,
        ]
    ),
    "operator": frozenset(
        {call_result(code).outcome for code in range(400, 5000)}
        | {"ok", "answered", "tool_error", "refused", "request refused", "slow reader cut", "call", "agent", "computer"}
        | {"viewer", "operator"}
        | {*get_args(CallState), *get_args(CallEnd)}
    ),
    "": frozenset(pages.THEMES),
}
"""Texts that are values of something else."""


def texts_of(node: ast.AST) -> Iterator[str]:
    """Constants that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body)
        yield from texts_of(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for each in node.values:
            yield from texts_of(each)


def said_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for place in TEXTS.get(name, ()):
                yield from texts_of(node.args[place]) if len(node.args) > place else ()
            yield from (text for each in node.keywords if each.arg == "menu" for text in texts_of(each.value))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield from tabled(node.targets[0].id, node.value)


def tabled(name: str, value: ast.AST) -> Iterator[str]:
    """Texts in tables: the columns of a list, the tiles of the overview, the choices of a field."""
    if name in ("columns", "said") and isinstance(value, ast.Tuple | ast.IfExp):
        for each in value.elts if isinstance(value, ast.Tuple) else (value,):
            yield from texts_of(each)
    if isinstance(value, ast.Dict) and name in (*TABLES, "tiles"):
        for each in value.values if TABLES.get(name) == "values" else value.keys:
            yield from texts_of(each) if each else ()


def said(folder: str) -> set[str]:
    sources = [path.read_text("utf-8") for path in sorted((FOLDER / folder).glob("*.py"))]
    if folder == "owner":
        sources.append(Path(additions.__file__).read_text("utf-8"))
    found = {text for source in sources for text in said_in(source)}
    return {text for text in found | COMPUTED[folder] if re.search("[A-Za-z]", text) and not text.startswith("/")}


@pytest.mark.parametrize("folder", ["owner", "operator"])
def test_every_text_of_a_console_is_there_in_chinese(folder: str) -> None:
    english, translated = said(folder), chinese(folder)
    assert english - set(translated) - set(chinese("shared")) == set()
    assert set(translated) - english == set(), "these are said nowhere"


def test_every_text_of_all_consoles_is_there_in_chinese() -> None:
    assert said("") - set(chinese("shared")) - set(sign_in.CHINESE) == set()


@pytest.mark.parametrize("texts", [*map(chinese, ("owner", "operator", "shared")), sign_in.CHINESE])
def test_a_translation_has_the_values_of_its_text(texts: Mapping[str, str]) -> None:
    for english, translated in texts.items():
        assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", translated)), english
        assert translated.strip()


def test_the_consoles_use_the_words_of_the_documentation() -> None:
    assert {chinese("owner")["Office"], chinese("operator")["Office"]} == {"房间"}
