"""An MCP server with resources and prompts, for the guide on them.

    python examples/library_server.py

speaks MCP on stdin and stdout. A computer runs it with this in its mcp.json:

    {"mcpServers": {"library": {"command": "python", "args": ["examples/library_server.py"]}}}

Its catalogue changes when a book is lent: `notify_resource_updated` tells those who have subscribed to it. `find_book`
answers with a link to a resource. The titles of books are completed while they are typed.
"""

from __future__ import annotations

import struct
import zlib

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
)

CATALOGUE = "library://catalogue"
BOOKS = {
    "Emma": "Emma Woodhouse, handsome, clever, and rich, with a comfortable home …",
    "Moby-Dick": "Call me Ishmael. Some years ago …",
    "Walden": "When I wrote the following pages …",
}
lent: set[str] = set()

library = MCPServer(
    "library", title="Library", version="1.2", instructions="Read the catalogue first. Books are short."
)


@library.resource(CATALOGUE, name="catalogue", mime_type="text/plain")
def catalogue() -> str:
    """All books, and which of them are lent."""
    return "\n".join(f"{title}{' (lent)' if title in lent else ''}" for title in BOOKS)


@library.resource("library://stamp", name="stamp", mime_type="image/png")
def stamp() -> bytes:
    """The stamp of the library, a red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xc0\x20\x20" * 16) * 16
    head = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@library.resource("library://books/{title}", name="book", mime_type="text/plain")
def book(title: str) -> str:
    """The beginning of a book."""
    return BOOKS[title]


@library.prompt()
def review(title: str, words: str = "100") -> str:
    """Ask for a review of a book."""
    return f"Write a review of {title} in at most {words} words. It begins: {BOOKS[title]}"


@library.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion | None:
    """Titles that begin with what was typed."""
    if argument.name != "title":
        return None
    return Completion(values=[title for title in BOOKS if title.lower().startswith(argument.value.lower())])


@library.tool()
def find_book(word: str) -> ResourceLink:
    """Find a book that has this word in its title or text, and answer with a link to it."""
    title = next(title for title, text in BOOKS.items() if word.lower() in f"{title} {text}".lower())
    return ResourceLink(type="resource_link", uri=f"library://books/{title}", name=title, mime_type="text/plain")


@library.tool()
async def lend(title: str, ctx: Context) -> str:
    """Lend a book."""
    lent.add(title)
    await ctx.notify_resource_updated(CATALOGUE)
    return f"{title} is lent"


def main() -> None:
    library.run("stdio")


if __name__ == "__main__":
    main()
