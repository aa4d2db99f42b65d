"""Files with servers and inputs: JSON, where comments and trailing commas are allowed, or TOML, in several shapes."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar

from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import (
    MCPServerConfig,
    MCPServerInput,
    meaningless_fields,
    parse_input,
    parse_server,
)
from a2c_smcp.mcp_host.config.validation import closest_name, did_you_mean

__all__ = ["Configuration", "Format", "loads", "parse_configuration", "read_configuration", "read_data"]

Format: TypeAlias = Literal["json", "toml"]


@dataclass(frozen=True)
class Configuration:
    """What a file holds. `unknown` says of each field that means nothing here which one it is nearest to."""

    servers: dict[str, MCPServerConfig] = field(default_factory=dict)
    inputs: dict[str, MCPServerInput] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def read_configuration(path: Path | str) -> Configuration:
    """The configuration in a file; `.toml` is TOML, anything else JSON. Raises `ConfigError` naming file and place."""
    return parse_configuration(_text(Path(path)), str(path), _form(Path(path)))


def read_data(path: Path) -> Any:
    """What stands in a file, whatever its shape, and nothing of it checked. Raises like `read_configuration`."""
    text = _text(path)
    try:
        return _READERS[_form(path)](text)
    except ConfigError as error:
        raise ConfigError(error.about, subject=str(path)) from None


def parse_configuration(text: str, where: str = "configuration", form: Format = "json") -> Configuration:
    """The configuration in a text. Every server and input that is wrong is named in one `ConfigError`."""
    try:
        data = _READERS[form](text)
        entries, definitions = _servers(data), _inputs(data)
    except ConfigError as error:
        raise ConfigError(error.about, subject=where) from None
    faults: list[str] = []
    servers = list(_attempt(entries, parse_server, faults))
    inputs = list(_attempt(definitions, parse_input, faults))
    faults += _repeated("server", (server.name for server in servers))
    faults += _repeated("input", (definition.id for definition in inputs))
    if faults:
        raise ConfigError(f"{where}: {'; '.join(faults)}", faults=faults)
    unknown = _misspelt(data)
    unknown += [words for server in servers for words in meaningless_fields(server, f"servers.{server.name}")]
    unknown += [words for each in inputs for words in meaningless_fields(each, f"inputs.{each.id}")]
    return Configuration(
        {server.name: server for server in servers},
        {definition.id: definition for definition in inputs},
        tuple(unknown),
    )


def _form(path: Path) -> Format:
    return "toml" if path.suffix.lower() == ".toml" else "json"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file{_beside(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from None


def _beside(path: Path) -> str:
    """A file of nearly this name, in the same folder."""
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
"""How texts begin that are not JSON, and what is said of them."""


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


# A string that is not closed ends with its line, so that what follows is still understood.
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"?)|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<space>\s+)|[^\s"/,:\[\]{}]+|.""",
    re.S,
)


def _plain(text: str) -> str:
    """The text with blanks for comments and trailing commas: all else stays in its line and column."""
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
        raise ConfigError("; ".join(_repeated("the name", (name for name, _ in pairs))))
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ConfigError(f"not JSON: {name} is not a number")


_SHAPES = 'must hold "servers" or "mcpServers" with an object of configurations, or be a list of them, or one of them'
_GROUPS = ("servers", "mcpServers", "inputs", "server")
_ONE_SERVER = frozenset({"type", "command", "url", "server_parameters"})
_Entry: TypeAlias = tuple[str, tuple[Any, ...]]
"""Where something stands in a list, and what to parse: a server and, unless it is in a list, its name."""


def _servers(data: object) -> list[_Entry]:
    if isinstance(data, list):
        return _listed("", data)
    if not isinstance(data, dict):
        raise ConfigError(_SHAPES)
    keys = [key for key in ("servers", "mcpServers") if key in data]
    if not keys and data.keys() & _ONE_SERVER:
        return [("", ({key: value for key, value in data.items() if key != "inputs"},))]
    if not keys and "inputs" not in data:
        raise ConfigError("; ".join(_misspelt(data)) or _SHAPES)
    return [entry for key in keys for entry in _group(key, data[key])]


def _misspelt(data: object) -> list[str]:
    """At the top, what is far from every name of ours is of another program."""
    names = [key for key in data if key not in _GROUPS and closest_name(key, _GROUPS)] if isinstance(data, dict) else []
    return [f"{name} means nothing here{did_you_mean(name, _GROUPS)}" for name in names]


def _group(key: str, servers: object) -> list[_Entry]:
    if isinstance(servers, dict):
        return [("", (server, name)) for name, server in servers.items()]
    if isinstance(servers, list):
        return _listed(f"{key}.", servers)
    raise ConfigError(f"{key}: must be an object of configurations by name, or a list of them")


def _inputs(data: object) -> list[_Entry]:
    inputs = data.get("inputs") if isinstance(data, dict) else None
    if not isinstance(inputs, list | None):
        raise ConfigError("inputs: must be a list")
    return _listed("inputs.", inputs or [])


def _listed(prefix: str, values: list[Any]) -> list[_Entry]:
    return [(f"{prefix}{index}: ", (value,)) for index, value in enumerate(values)]


_T = TypeVar("_T")


def _attempt(entries: Iterable[_Entry], parse: Callable[..., _T], faults: list[str]) -> Iterator[_T]:
    """What can be parsed; why the others cannot is added to `faults`."""
    for place, arguments in entries:
        try:
            yield parse(*arguments)
        except ConfigError as error:
            faults.append(f"{place}{error.about}")


def _repeated(what: str, names: Iterable[str]) -> list[str]:
    return [f"{what} {name!r} stands there twice, keep one" for name, times in Counter(names).items() if times > 1]
