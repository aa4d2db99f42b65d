"""Window URIs (004): `window://host/path1/path2?priority=P&fullscreen=F`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from a2c_smcp.errors import InvalidWindowURI

_BOOLEANS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_HOST = re.compile(r"[^\s/?#%@\x00-\x20\x7f]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_INTEGER = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class WindowURI:
    """A window: which MCP server shows it, where in it, and how much it matters among that server's windows."""

    host: str
    path: tuple[str, ...] = ()
    priority: int | None = None
    fullscreen: bool | None = None

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise InvalidWindowURI(f"bad host {self.host!r}")
        if not all(self.path):
            raise InvalidWindowURI("an empty path segment")
        if self.priority is not None and not (type(self.priority) is int and 0 <= self.priority <= 100):
            raise InvalidWindowURI(f"priority must be an integer from 0 to 100, not {self.priority!r}")

    @classmethod
    def parse(cls, uri: str) -> WindowURI:
        """Reads a URI; raises `InvalidWindowURI`. Each path segment is decoded by itself: `c%2Fd` stays one."""
        if _CONTROL.search(uri) or uri != uri.strip():
            raise InvalidWindowURI("control characters, or white space around it")  # urlsplit would drop them
        try:
            parts = urlsplit(uri)
            query = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
            path = tuple(unquote(segment, errors="strict") for segment in parts.path.split("/") if segment)
        except ValueError as error:
            raise InvalidWindowURI(str(error)) from None
        if parts.scheme != "window":
            raise InvalidWindowURI(f"the scheme must be window, not {parts.scheme!r}")
        names = [name for name, _ in query]
        if any(names.count(name) > 1 for name in ("priority", "fullscreen")):
            raise InvalidWindowURI("priority and fullscreen may be given once")
        options = dict(query)
        return cls(parts.netloc, path, _priority(options.get("priority")), _fullscreen(options.get("fullscreen")))

    def __str__(self) -> str:
        options = {"priority": self.priority, "fullscreen": self.fullscreen}
        query = urlencode({name: str(value).lower() for name, value in options.items() if value is not None})
        path = "".join(f"/{quote(segment, safe='')}" for segment in self.path)
        return f"window://{self.host}{path}{'?' if query else ''}{query}"


def _priority(text: str | None) -> int | None:
    if text is None:
        return None
    if not _INTEGER.fullmatch(text):
        raise InvalidWindowURI(f"priority must be an integer from 0 to 100, not {text!r}")
    return int(text)


def _fullscreen(text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in _BOOLEANS:
        raise InvalidWindowURI(f"fullscreen must be one of {', '.join(_BOOLEANS)}, not {text!r}")
    return _BOOLEANS[text.lower()]
