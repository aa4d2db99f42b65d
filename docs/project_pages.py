"""MkDocs hooks: pages that live at the root of the project, and one menu and language for the Chinese pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_nav", "on_page_context"]

_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
_CHINESE, _FOLDER = "中文", "zh/"
_TOGGLES = {"en": ("Dark", "Light"), "zh": ("深色", "浅色")}
_HOMES = {"en": ("English", "index.html"), "zh": (_CHINESE, "zh/index.html")}

_menus: dict[str, Navigation] = {}
"""By language; made anew by each build."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs when it has found the files of `docs`."""
    root = Path(config.docs_dir).parent
    for name in _PAGES:
        text = (root / name).read_text("utf-8").replace("](docs/", "](")  # the pages are beside them on the site
        files.append(File.generated(config, name, content=text))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Divides the menu by language; each one ends with a link to the other."""
    (chinese,) = (item for item in nav.items if item.title == _CHINESE)
    assert isinstance(chinese, Section)
    english = [item for item in nav.items if item is not chinese]
    pages: dict[str, list[Page]] = {"en": [], "zh": []}
    for page in nav.pages:
        pages[_language(page)].append(page)
    _menus["en"] = Navigation([*english, Link(*_HOMES["zh"])], pages["en"])
    _menus["zh"] = Navigation([*chinese.children, Link(*_HOMES["en"])], pages["zh"])
    for own in pages.values():
        own[0].previous_page, own[-1].next_page = None, None
    _menus["zh"].homepage = pages["zh"][0]
    return nav


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation) -> dict[str, Any]:
    """Called before each page is rendered: sets its menu, the theme's words, and the link to its translation."""
    language = _language(page)
    config.theme["language"] = language
    for choice, name in zip(config.theme["palette"], _TOGGLES[language], strict=True):
        choice["toggle"]["name"] = name
    urls = {other.url for menu in _menus.values() for other in menu.pages}
    here = page.url.removeprefix(_FOLDER)
    twins = {"en": here, "zh": _FOLDER + here}
    config.extra["alternate"] = [
        {"name": name, "lang": lang, "link": twins[lang] if twins[lang] in urls else home}
        for lang, (name, home) in _HOMES.items()
    ]
    return {**context, "nav": _menus[language]}


def _language(page: Page) -> str:
    return "zh" if page.url.startswith(_FOLDER) else "en"
