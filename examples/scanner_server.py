"""An MCP server with large results, for the guide on large files.

    python examples/scanner_server.py

speaks MCP on stdin and stdout. A computer runs it with this in its mcp.json:

    {"mcpServers": {"scanner": {"command": "python", "args": ["examples/scanner_server.py"]}}}

`scan` returns pictures of 3 MB each, `transcript` a text of several MB. `check` reads a file on the computer, such as
one that an agent has sent.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer

SIDE = 1000  # pixels
HEAD = 54  # bytes

scanner = MCPServer("scanner")


def page(number: int) -> bytes:
    """A grey page in the format BMP: a head, and three bytes for each pixel."""
    pixels = bytes([200 + number % 50] * 3) * (SIDE * SIDE)
    start = struct.pack("<2sIII", b"BM", HEAD + len(pixels), 0, HEAD)
    return start + struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 24, 0, len(pixels), 0, 0, 0, 0) + pixels


@scanner.tool()
def scan(pages: int = 1) -> list[Image]:
    """Scan some pages."""
    return [Image(data=page(number), format="bmp") for number in range(pages)]


@scanner.tool(structured_output=False)
def transcript(lines: int) -> str:
    """The text of what was scanned."""
    return "\n".join(f"{number:08}: the quick brown fox jumps over the dog" for number in range(lines))


@scanner.tool(structured_output=False)
def check(path: str) -> str:
    """The size and the hash of a file."""
    content = Path(path).read_bytes()
    return f"{len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"


@scanner.resource("scanner://last", name="last", mime_type="image/bmp")
def last() -> bytes:
    """The page that was scanned last."""
    return page(0)


def main() -> None:
    scanner.run("stdio")


if __name__ == "__main__":
    main()
