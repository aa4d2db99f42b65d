"""`python -m tests.golden [FOLDER]`: writes the golden files, or their like into another folder."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.scenario import observed
from tests.golden.tables import tables

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
with TemporaryDirectory() as home:
    for name, text in (asyncio.run(observed(Path(home))) | tables()).items():
        (folder / name).write_text(text, "utf-8")
