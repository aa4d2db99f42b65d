"""URIs of resources that are not the only ones of their URI: `a2c://COMPUTER/SERVER/URI`.

`URI` is the one that the MCP server knows, as it is, so a template stays one. The others are percent-encoded.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote, unquote

__all__ = ["QualifiedURI", "uri_prefix", "with_prefix"]

_SCHEME = "a2c://"


class QualifiedURI(NamedTuple):
    """What such a URI says."""

    computer: str
    mcp_server: str
    uri: str

    @classmethod
    def parse(cls, uri: str) -> QualifiedURI | None:
        """`None` for any other URI."""
        computer, _, rest = uri.removeprefix(_SCHEME).partition("/")
        mcp_server, _, own = rest.partition("/")
        is_one = uri.startswith(_SCHEME) and computer and mcp_server and own
        return cls(unquote(computer), unquote(mcp_server), own) if is_one else None


def uri_prefix(*places: str) -> str:
    """What stands before the URI of a resource of this computer and MCP server."""
    return _SCHEME + "".join(f"{quote(place, safe='')}/" for place in places)


def with_prefix(prefix: str, result: dict[str, Any]) -> dict[str, Any]:
    """MCP's result of reading a resource, whose contents have the URIs of its MCP server."""
    contents = result.get("contents")
    if not prefix or not isinstance(contents, list):
        return result
    return {**result, "contents": [_renamed(prefix, each) for each in contents]}


def _renamed(prefix: str, content: Any) -> Any:
    uri = content.get("uri") if isinstance(content, dict) else None
    return {**content, "uri": f"{prefix}{uri}"} if isinstance(uri, str) else content
