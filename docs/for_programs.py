"""MkDocs hooks: the documentation for programs. Each page is there as Markdown too, and `llms.txt` lists them.

A page is beside its HTML under the name of its source, so links between sources lead from one such page to another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

__all__ = ["on_nav", "on_post_build"]

_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_PARAGRAPH = re.compile(r"^(?![#|>!<\-\d ])\S.*(?:\n\S.*)*", re.MULTILINE)
_SENTENCE = re.compile(r".+?(?:\.(?= |$)|。)")

_menu: list[tuple[str, list[Page]]] = []
"""The headings of the menu with their pages; made anew by each build."""


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Called before `project_pages` divides the menu by language."""
    tops = [(item.title, [*_pages([item])]) for item in nav.items if isinstance(item, Section)]
    _menu[:] = [(config.site_name, [page for page in nav.items if isinstance(page, Page)]), *tops]


def on_post_build(config: MkDocsConfig) -> None:
    """Called when all else is written."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for heading, pages in _menu:
        lines += [f"## {heading}", "", *map(_line, pages), ""]
        for page in pages:
            file = site / page.file.src_uri
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(page.markdown or "", "utf-8")
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")


def _pages(items: list[object]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Page):
            yield item
        elif isinstance(item, Section):
            yield from _pages(item.children)


def _line(page: Page) -> str:
    """The page as `llms.txt` lists it, with its first sentence."""
    paragraphs = (found[0].replace("\n", " ") for found in _PARAGRAPH.finditer(_BLOCK.sub("", page.markdown or "")))
    sentences = (found[0] for text in paragraphs if (found := _SENTENCE.match(_LINK.sub(r"\1", text))))
    return f"- [{page.title}]({page.file.src_uri}): {next(sentences, page.title)}"
