"""`python -m reference`: writes the pages to `docs/reference`."""

from __future__ import annotations

from reference.pages import FOLDER, PAGES

FOLDER.mkdir(exist_ok=True)
for name, page in PAGES.items():
    (FOLDER / name).write_text(page(), "utf-8")
