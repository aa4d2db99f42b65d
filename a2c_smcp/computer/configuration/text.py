"""Texts of configuration files: JSON, in which comments and trailing commas are allowed, or TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.validation import did_you_mean

__all__ = [
    "Format",
    "ends_in_line_comment",
    "format_of",
    "loads",
    "parse",
    "read_data",
    "read_text",
    "repeated",
    "significant_tokens",
]

Format: TypeAlias = Literal["json", "toml"]


def read_data(path: Path) -> Any:
    """The data in a file; `.toml` is TOML, anything else JSON. Raises `ConfigError` naming file, line and column."""
    text = read_text(path)
    try:
        return parse(text, format_of(path))
    except ConfigError as error:
        raise ConfigError(error.about, subject=str(path)) from None


def parse(text: str, form: Format) -> Any:
    """The data in a text. Raises `ConfigError` naming line and column."""
    return _READERS[form](text)


def format_of(path: Path) -> Format:
    return "toml" if path.suffix.lower() == ".toml" else "json"


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file{_similar_file(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from None


def _similar_file(path: Path) -> str:
    """A hint at a file with a similar name in the same folder."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix in (".json", ".toml")]
    except OSError:
        return ""
    return did_you_mean(path.name, names)


def loads(text: str) -> Any:
    """JSON with `//` and `/* */` comments and trailing commas. Raises `ConfigError` naming line and column."""
    try:
        return json.loads(_plain(text), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        what = next((words for look, words in _OTHER_FORMS if look.match(text)), f"not JSON: {error.msg}")
        raise ConfigError(f"line {error.lineno}, column {error.colno}: {what}") from None
    except RecursionError:
        raise ConfigError("nested too deeply") from None
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError("a number has too many digits") from None


_BEFORE = r"(?:\s*(?:#[^\n]*)?\n)*"
_OTHER_FORMS = (
    (
        re.compile(_BEFORE + r"(?:---|%YAML|-\s|[\w.-]+:(?:\s|$))"),
        "this looks like YAML, which is not read here: write it as JSON or TOML",
    ),
    (
        re.compile(_BEFORE + r"(?:\[\[?[A-Za-z_\"'][\w.\"' -]*\]\]?\s*(?:#|\n|$)|[\w.-]+\s*=)"),
        "this looks like TOML: give the file a name that ends in .toml",
    ),
)
"""How texts in other formats begin, and the message for each."""


def _loads_toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from None
    except RecursionError:
        raise ConfigError("nested too deeply") from None
    except ValueError:
        raise ConfigError("not TOML: a number or a date is out of range") from None


_READERS: dict[Format, Callable[[str], Any]] = {"json": loads, "toml": _loads_toml}


# A string that is not closed ends with its line, so that the rest of the text is still understood.
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"?)|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<space>\s+)|[^\s"/,:\[\]{}]+|.""",
    re.S,
)


def significant_tokens(text: str, start: int = 0) -> Iterator[re.Match[str]]:
    """The tokens of a JSON text from an offset on, without white space and comments."""
    return (token for token in _TOKEN.finditer(text, start) if token.lastgroup not in ("comment", "space"))


def ends_in_line_comment(text: str) -> bool:
    """Whether the last token of a JSON text is a `//` comment. Two block comments side by side contain `//`, too."""
    last = deque(_TOKEN.finditer(text), maxlen=1)
    return bool(last) and last[0][0].startswith("//")


def _plain(text: str) -> str:
    """The text with comments and trailing commas blanked out. Everything else keeps its line and column."""
    pieces: list[str] = []
    before, comma = "", -1
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if token.lastgroup == "comment":
            _check_closed(piece, text, token.start())
            piece = re.sub(r"[^\n]", " ", piece)
        elif token.lastgroup != "space":
            if piece in ("]", "}") and before == "," and comma >= 0:
                pieces[comma] = " "
            if piece == ",":
                comma = -1 if before in ("", "[", "{", ",", ":") else len(pieces)
            before = piece
        pieces.append(piece)
    return "".join(pieces)


def _check_closed(comment: str, text: str, start: int) -> None:
    if comment.startswith("/*") and (len(comment) < len("/**/") or not comment.endswith("*/")):
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        raise ConfigError(f"line {line}, column {column}: the comment is not closed")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ConfigError("; ".join(repeated("the name", (name for name, _ in pairs))))
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ConfigError(f"not JSON: {name} is not a number")


def repeated(what: str, names: Iterable[str]) -> list[str]:
    """A message for each name that occurs more than once."""
    return [f"{what} {name!r} is there twice, keep one" for name, times in Counter(names).items() if times > 1]
