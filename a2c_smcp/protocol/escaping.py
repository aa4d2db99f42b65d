"""Text from peers made safe to show: nothing in it moves the cursor, and no part of it is hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from a2c_smcp.protocol.names import INVISIBLE

_SPACES = re.compile(" {4,}")
_TAIL = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]{0,63}")
_PLAIN_NAME = re.compile(r"[\w.@/:+-]+(?: [\w.@/:+-]+)*")
_SHORT = 240
"""Values of at most so many characters in all are shown as one line of JSON."""
_LONGEST_PATH = 240
_LONGEST_URL = 4096
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last part of a host that browsers read as an IPv4 address."""


def escaped(text: str, keep: str = "") -> str:
    """The text with invisible characters escaped as in JSON (`\\u202e`): controls, DEL, marks of writing direction."""
    if _is_visible(text):
        return text
    return "".join(char if _is_visible(char) or char in keep else json.dumps(char)[1:-1] for char in text)


def _is_visible(text: str) -> bool:
    """Unicode's categories call fillers, blank patterns and variation selectors printable. They are not visible."""
    return text.isprintable() and (text.isascii() or not INVISIBLE.search(text))


def one_line(value: Any, most: int | None = None) -> str:
    """A JSON value in one line. A long one is cut in the middle, with how many characters are left out.

    Runs of blanks are counted, not shown: they would push the rest off the screen.
    """
    text = escaped(json.dumps(value, ensure_ascii=False))
    return _cut(_SPACES.sub(lambda blanks: f" [{len(blanks[0])} blanks] ", text), most)


def _cut(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    head = most - _TAIL
    return f"{text[:head]} [… {len(text) - most} more characters …] {text[-_TAIL:]}"


def shown_caller(agent: str, client: str = "") -> str:
    """An agent, and the MCP client that it calls for: `bridge (claude-desktop)`.

    The client has named itself. A name that could be taken for more than a name is in quotation marks.
    """
    if not client:
        return agent
    is_plain = _PLAIN_NAME.fullmatch(client) and _is_visible(client)
    return f"{agent} ({client if is_plain else one_line(client)})"


class ShownValues(NamedTuple):
    """The lines of `values_in_lines`, how many values have none, and whether a line shows a value in part."""

    lines: list[str]
    missing: int = 0
    is_cut: bool = False


def values_in_lines(values: Mapping[str, Any], width: int | None = None, most: int | None = None) -> ShownValues:
    """Every key with its value on one line, escaped and cut: no value can hide another one or imitate it.

    Lines have about `width` characters, and there are at most `most`. A few short values are one line of JSON.
    """
    if len(short := one_line(values)) <= _SHORT:
        return ShownValues([short])
    known = [*leaves(values)]
    shown = [(path, one_line(value), one_line(value, width)) for path, value in known[:most]]
    lines = [f"{path if width is None else _cut(path, _LONGEST_PATH)}: {value}" for path, _, value in shown]
    return ShownValues(lines, len(known) - len(shown), any(value != whole for _, whole, value in shown))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a JSON value with its path: `options.shell`, `files[2]`. Empty ones are values, too."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            is_plain = isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and _is_visible(key)
            shown = key if is_plain else one_line(key, 120)
            yield from leaves(each, f"{path}.{shown}" if path else shown)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from leaves(each, f"{path}[{index}]")
    else:
        yield path, value


def web_host(url: str, most: int = _LONGEST_URL) -> str:
    """The host of an http(s) URL, exactly as a browser reads it; empty for a URL that a browser may read otherwise.

    Browsers map other alphabets, percent signs and numbers (`127.1`) to the host that they open, and take `\\` as `/`.
    """
    try:
        parts = urlsplit(url)
        place = _PLACE.fullmatch(parts.netloc.rpartition("@")[2].lower())
        host, port = place[1] if place else "", f":{parts.port}" if parts.port else ""
        if host.startswith("["):
            host = f"[{IPv6Address(host[1:-1])}]"
        elif _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
            host = str(IPv4Address(host))
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or len(url) > most or escaped(url) != url or " " in url or "\\" in url:
        return ""
    return f"{host}{port}" if host else ""
