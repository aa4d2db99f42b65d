"""Configuration files: the shapes in which they list servers and inputs, and the configuration that they make.

A file is `{"servers": {…}, "inputs": […], "scanners": […]}`, `{"mcpServers": {…}}`, a list of servers with names, or
one server. Files of other programs have the same shapes, so an import reads them here, too.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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


# Edits the text of a JSON file: a member of an object is added, replaced or removed, the rest stays byte for byte.
#
# Comments, trailing commas, indentation, line ends and a byte order mark are kept, and the new member follows the style
# of the file. The text must be one that `loads` can read, with an object at its top, or empty.

BYTE_ORDER_MARK = "\ufeff"
_DEFAULT_INDENT = "  "
_INDENTED = re.compile(r"^([ \t]+)[\"}]", re.MULTILINE)
_BLANKS = re.compile(r"[ \t]*")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|//)")
_COMMENTS_ON_THE_LINE = re.compile(r"(?:[ \t]*(?://[^\r\n]*|/\*.*?\*/))*", re.DOTALL)


def with_member(text: str, path: Sequence[str], value: Any) -> str:
    """The text with a value at this path of names.

    A new member is the last one of its object, a known one keeps its place. Missing objects on the path are added.
    """
    mark, body = _without_mark(text)
    body = body if body.strip() else "{}\n"
    holder = _object_at(body, 0)
    for depth, name in enumerate(path, 1):
        if (found := holder.member(name)) is None:
            for inner in reversed(path[depth:]):
                value = {inner: value}
            return mark + _added(body, holder, name, value)
        if depth < len(path):
            holder = _object_at(body, found.value)
    assert found
    if "\n" in body[holder.opening : holder.closing]:
        written = _json(value, indent=_unit(body)).replace("\n", _line_end(body) + _indent_of_line(body, found.start))
    else:
        written = _json(value)
    return mark + body[: found.value] + written + body[found.end :]


def without_member(text: str, group: str, name: str) -> str:
    """The text without this member of the object `group`; the same text if there is none."""
    mark, body = _without_mark(text)
    found = _object_at(body, 0).member(group)
    return text if found is None else mark + _removed(body, _object_at(body, found.value), name)


def _without_mark(text: str) -> tuple[str, str]:
    body = text.removeprefix(BYTE_ORDER_MARK)
    return text[: len(text) - len(body)], body


@dataclass(frozen=True)
class _MemberSpan:
    """A member by offsets: where its name and its value start, where the value ends, and the comma after it."""

    name: str
    start: int
    value: int
    end: int
    comma: int | None


@dataclass(frozen=True)
class _ObjectSpan:
    """An object by the offsets of its braces."""

    opening: int
    closing: int
    members: tuple[_MemberSpan, ...]

    def member(self, name: str) -> _MemberSpan | None:
        return next((member for member in self.members if member.name == name), None)


def _object_at(text: str, start: int) -> _ObjectSpan:
    """The object that is the next value from an offset on."""
    tokens = significant_tokens(text, start)
    opening, token = next(tokens), next(tokens)
    members: list[_MemberSpan] = []
    while token[0] != "}":
        name, _, value = token, next(tokens), next(tokens)
        end, token = _end_of_value(value, tokens), next(tokens)
        comma = token.start() if token[0] == "," else None
        members.append(_MemberSpan(json.loads(name[0]), name.start(), value.start(), end, comma))
        token = token if comma is None else next(tokens)
    return _ObjectSpan(opening.start(), token.start(), tuple(members))


def _end_of_value(token: re.Match[str], following: Iterator[re.Match[str]]) -> int:
    depth = 0
    while True:
        depth += (token[0] in ("{", "[")) - (token[0] in ("}", "]"))
        if depth == 0:
            return token.end()
        token = next(following)


def _added(text: str, to: _ObjectSpan, name: str, value: Any) -> str:
    if not to.members:
        return _added_to_empty(text, to, name, value)
    first, last = to.members[0], to.members[-1]
    if "\n" not in text[to.opening : first.start]:
        separator, written = " ", f"{_json(name)}: {_json(value)}"
    else:
        indent = _indent_of_line(text, first.start)
        separator, written = _line_end(text) + indent, _in_lines(text, indent, name, value)
    if last.comma is None:
        text = text[: last.end] + "," + text[last.end :]
    else:
        written += ","
    at = (last.end if last.comma is None else last.comma) + 1
    if separator != " " and (comments := _COMMENTS_ON_THE_LINE.match(text, at)):  # they belong to what is before them
        at = comments.end()
    return text[:at] + separator + written + text[at:]


def _added_to_empty(text: str, to: _ObjectSpan, name: str, value: Any) -> str:
    """Comments inside the braces stay in front of the new member."""
    end, outer = _line_end(text), _indent_of_line(text, to.opening)
    indent = outer + _unit(text)
    before = text[: to.closing].rstrip()
    return before + end + indent + _in_lines(text, indent, name, value) + end + outer + text[to.closing :]


def _removed(text: str, from_: _ObjectSpan, name: str) -> str:
    if (member := from_.member(name)) is None:
        return text
    place = from_.members.index(member)
    before = from_.members[place - 1] if place else None
    end = member.end if member.comma is None else member.comma + 1
    start = _start_of_space(text, before.end if before else from_.opening + 1, member.start, end)
    if len(from_.members) == 1 and not (text[from_.opening + 1 : start] + text[end : from_.closing]).strip():
        return text[: from_.opening + 1] + text[from_.closing :]
    if member.comma is None and before and before.comma is not None:  # the one before is the last one now
        return text[: before.comma] + text[before.comma + 1 : start] + text[end:]
    return text[:start] + text[end:]


def _start_of_space(text: str, after: int, start: int, end: int) -> int:
    """Where the space before a member starts. The end of a line comment is kept, unless one follows."""
    head = text[:start].rstrip(" \t")
    line = head.removesuffix("\n").removesuffix("\r")
    is_comment = ends_in_line_comment(text[after : len(line)])
    return len(head) if is_comment and not _REST_OF_LINE.match(text, end) else len(line)


def _in_lines(text: str, indent: str, name: str, value: Any) -> str:
    written = f"{_json(name)}: {_json(value, indent=_unit(text))}"
    return written.replace("\n", _line_end(text) + indent)


def _json(value: Any, indent: str | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str) -> str:
    """The indentation of one level: that of the first line that has one."""
    found = _INDENTED.search(text)
    return found[1] if found else _DEFAULT_INDENT


def _indent_of_line(text: str, offset: int) -> str:
    found = _BLANKS.match(text, text.rfind("\n", 0, offset) + 1)
    return found[0] if found else ""


# The change of a configuration file as a unified diff. Secrets have to be masked before.

_CONTEXT = 3
"""Lines around a change that are shown."""
_HEADER = re.compile(r"^@@ -(\d+)(\S*) \+(\d+)(\S*) @@")


def unified_diff(path: Path, before: Sequence[str] | None, after: Sequence[str]) -> str:
    """The lines of a file that change. Before is `None` if there was no file.

    Only the part that differs is compared: for a long file, difflib would take many seconds.
    """
    name, old = str(path), before or []
    start = max(equal_at_start(old, after) - _CONTEXT, 0)
    rest = max(equal_at_start(old[start:][::-1], after[start:][::-1]) - _CONTEXT, 0)
    lines = difflib.unified_diff(
        old[start : len(old) - rest],
        after[start : len(after) - rest],
        "/dev/null" if before is None else name,
        name,
        n=_CONTEXT,
        lineterm="",
    )
    return "".join(f"{_HEADER.sub(lambda header: _moved(header, start), line)}\n" for line in lines)


def equal_at_start(some: Sequence[str], others: Sequence[str]) -> int:
    """The number of equal items at the beginning."""
    pairs = zip(some, others, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(some), len(others)))


def _moved(header: re.Match[str], lines: int) -> str:
    return f"@@ -{int(header[1]) + lines}{header[2]} +{int(header[3]) + lines}{header[4]} @@"
