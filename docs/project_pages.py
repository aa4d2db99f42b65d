"""Pages of the site that live at the root of the project, where people look for them."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files"]

_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs asks this when it has found the files of `docs`."""
    root = Path(config.docs_dir).parent
    for name in _PAGES:
        files.append(File.generated(config, name, content=(root / name).read_text("utf-8")))
    return files
