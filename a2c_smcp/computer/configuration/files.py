"""Configuration files: the shapes in which they list servers and inputs, and the configuration that they make.

A file is `{"servers": {…}, "inputs": […], "scanners": […]}`, `{"mcpServers": {…}}`, a list of servers with names, or
one server. Files of other programs have the same shapes, so an import reads them here, too.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from a2c_smcp.computer.consent.programs import ScannerConfig, parse_scanner
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.inputs import closest_name, did_you_mean
from a2c_smcp.mcp_host.config.servers import (
    MCPServerConfig,
    MCPServerInput,
    meaningless_fields,
    parse_input,
    parse_server,
)

# Texts of configuration files: JSON, in which comments and trailing commas are allowed, or TOML.

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
        names = [file.name for file in path.parent.iterdir() if file.suffix in (".json", ".toml")]
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
"""The beginnings of texts in other formats, with a message for each."""


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
    """True if the last token of a JSON text is a `//` comment. Two block comments side by side contain `//`, too."""
    last = deque(_TOKEN.finditer(text), maxlen=1)
    return bool(last) and last[0][0].startswith("//")


def _plain(text: str) -> str:
    """The text with comments and trailing commas blanked out. Everything else keeps its line and column."""
    pieces: list[str] = []
    before, comma = "", -1
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if token.lastgroup == "comment":
            if piece.startswith("/*") and (len(piece) < len("/**/") or not piece.endswith("*/")):
                start = token.start()
                line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
                raise ConfigError(f"line {line}, column {column}: the comment is not closed")
            piece = re.sub(r"[^\n]", " ", piece)
        elif token.lastgroup != "space":
            if piece in ("]", "}") and before == "," and comma >= 0:
                pieces[comma] = " "
            if piece == ",":
                comma = -1 if before in ("", "[", "{", ",", ":") else len(pieces)
            before = piece
        pieces.append(piece)
    return "".join(pieces)


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


GROUPS = ("servers", "mcpServers")
"""The keys under which a file has its servers."""

_SHAPES = 'must hold "servers" or "mcpServers" with an object of configurations, or be a list of them, or one of them'
_LISTS = ("inputs", "scanners")
_KEYS = (*GROUPS, *_LISTS, "server")
_ONE_SERVER = frozenset({"type", "command", "url", "server_parameters"})


@dataclass(frozen=True)
class Configuration:
    """The servers and inputs of a file, by name, and its scanners. `unknown` has a sentence for each unknown field."""

    servers: dict[str, MCPServerConfig] = field(default_factory=dict)
    inputs: dict[str, MCPServerInput] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    scanners: tuple[ScannerConfig, ...] = ()


def read_configuration(path: Path | str) -> Configuration:
    """The configuration in a file; `.toml` is TOML, anything else JSON. Raises `ConfigError` naming file and place."""
    return parse_configuration(read_text(Path(path)), str(path), format_of(Path(path)))


def read_all(paths: Iterable[Path]) -> Configuration:
    """All files as one configuration. Raises `ConfigError`, also for a name that is in two of them."""
    merged = Configuration()
    unknown: list[str] = []
    scanners: list[ScannerConfig] = []
    for path in paths:
        found = read_configuration(path)
        for kind, known, new in (("server", merged.servers, found.servers), ("input", merged.inputs, found.inputs)):
            if twice := sorted(known.keys() & new.keys()):
                raise ConfigError(f"{path}: {kind} {twice[0]!r} is in another file too")
        merged.servers.update(found.servers)
        merged.inputs.update(found.inputs)
        unknown += [f"{path}: {field}" for field in found.unknown]
        scanners += found.scanners
    return Configuration(merged.servers, merged.inputs, tuple(unknown), tuple(scanners))


def parse_configuration(text: str, where: str = "configuration", form: Format = "json") -> Configuration:
    """The configuration in a text. Every server and input that is wrong is named in one `ConfigError`."""
    try:
        data = parse(text, form)
        sections = sections_of(data)
        if not sections.is_recognised:
            raise ConfigError("; ".join(_misspelt(data, "is an unknown field")) or _SHAPES)
    except ConfigError as error:
        raise ConfigError(error.about, subject=where) from None
    faults: list[str] = []
    servers = list(_parsed(sections.servers, lambda entry: parse_server(entry.data, entry.name), faults))
    inputs = list(_parsed(sections.inputs, lambda entry: parse_input(entry.data), faults))
    scanners = tuple(_parsed(sections.scanners, lambda entry: parse_scanner(entry.data), faults))
    faults += repeated("server", (server.name for server in servers))
    faults += repeated("input", (definition.id for definition in inputs))
    if faults:
        raise ConfigError(f"{where}: {'; '.join(faults)}", faults=faults)
    return Configuration(
        {server.name: server for server in servers},
        {definition.id: definition for definition in inputs},
        (*_misspelt(data), *_unknown(servers, inputs)),
        scanners,
    )


def _unknown(servers: Iterable[MCPServerConfig], inputs: Iterable[MCPServerInput]) -> Iterator[str]:
    for server in servers:
        yield from meaningless_fields(server, f"servers.{server.name}")
    for definition in inputs:
        yield from meaningless_fields(definition, f"inputs.{definition.id}")


class FileEntry(NamedTuple):
    """A server or an input as it is in a file. `place` is where, for messages; `name` is its key, if it has one."""

    place: str
    data: Any
    name: str | None = None


@dataclass(frozen=True)
class Sections:
    """The parts of a file. `others` are its keys that are not about MCP servers and their inputs."""

    servers: tuple[FileEntry, ...] = ()
    inputs: tuple[FileEntry, ...] = ()
    others: tuple[str, ...] = ()
    scanners: tuple[FileEntry, ...] = ()
    is_recognised: bool = True
    """True if the file has one of the known shapes."""


def sections_of(data: object) -> Sections:
    """The parts of a file, whatever its shape. Nothing inside servers and inputs is checked. Raises `ConfigError`."""
    if isinstance(data, list):
        return Sections(_listed("", data))
    if not isinstance(data, dict):
        raise ConfigError(_SHAPES)
    inputs, scanners = _entries("inputs", data), _entries("scanners", data)
    if data.keys().isdisjoint(GROUPS) and data.keys() & _ONE_SERVER:
        server = {key: value for key, value in data.items() if key not in _LISTS}
        return Sections((FileEntry("", server),), inputs, scanners=scanners)
    return Sections(
        tuple(entry for key in GROUPS if key in data for entry in _group(key, data[key])),
        inputs,
        tuple(key for key in data if key not in (*GROUPS, "inputs")),
        scanners,
        is_recognised=not data.keys().isdisjoint((*GROUPS, *_LISTS)),
    )


def _group(key: str, servers: object) -> tuple[FileEntry, ...]:
    if isinstance(servers, dict):
        return tuple(FileEntry("", server, name) for name, server in servers.items())
    if isinstance(servers, list):
        return _listed(f"{key}.", servers)
    raise ConfigError(f"{key}: must be an object of configurations by name, or a list of them")


def _entries(key: str, data: dict[str, Any]) -> tuple[FileEntry, ...]:
    values = data.get(key)
    if not isinstance(values, list | None):
        raise ConfigError(f"{key}: must be a list")
    return _listed(f"{key}.", values or [])


def _listed(prefix: str, values: list[Any]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(f"{prefix}{index}: ", value) for index, value in enumerate(values))


def _misspelt(data: object, what: str = "is an unknown field and is ignored") -> list[str]:
    """A sentence for each key at the top that is similar to one of ours. Other keys belong to other programs."""
    names = [key for key in data if key not in _KEYS and closest_name(key, _KEYS)] if isinstance(data, dict) else []
    return [f"{name} {what}{did_you_mean(name, _KEYS)}" for name in names]


_T = TypeVar("_T")


def _parsed(entries: Iterable[FileEntry], parse: Callable[[FileEntry], _T], faults: list[str]) -> Iterator[_T]:
    """The entries that can be parsed. Why others cannot is added to `faults`."""
    for entry in entries:
        try:
            yield parse(entry)
        except ConfigError as error:
            faults.append(f"{entry.place}{error.about}")
