"""Names that every MCP client accepts: 1 to 64 of `A-Z a-z 0-9 _ -`.

Two underscores stand only between a computer and its tool. A name has the form `<tool>`, without two underscores in a
row, or `<computer>__<tool>`, where the first two end the computer's part. So no tool, whatever its computer calls it,
can get a name that reads like one of another computer.

Everything else becomes `_`, accents are dropped. Where letters are lost (`搜索`) or a name is too long, a digest of the
original follows: `_x` and 8 digits. Such a name depends on its original only, not on other tools. The name of a
computer that happens to end like that gets a digest of its own; so what two computers put in front is never the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from hashlib import sha256
from itertools import count

from a2c_smcp.bridge.offers import Owner, SharedTool

__all__ = ["LONGEST", "is_valid", "spellings", "without_accents"]

LONGEST = 64
_LONGEST_COMPUTER = 32
_BETWEEN = "__"

_VALID = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST}}}")
_FOREIGN = re.compile(r"[^A-Za-z0-9-]+")  # underscores too, so that there are never two in a row
_MARKED = re.compile(r"_x[0-9a-f]{8}")
_MARK = len("_x00000000")


def is_valid(name: str) -> bool:
    return _VALID.fullmatch(name) is not None


def spellings(owner: Owner) -> Iterator[str]:
    """The names that an owner may have, the best first. They never end."""
    plain = _plain(owner.tool)
    if isinstance(owner, SharedTool):
        yield from _of_shared(plain, owner.schema)
        return
    yield plain
    front = f"{_computer(owner.computer)}{_BETWEEN}"
    room, tool = LONGEST - len(front), plain.lstrip("_")
    yield front + (tool if len(tool) <= room else _marked(tool, owner.tool, room))
    yield from (front + _marked(tool, f"{owner.tool}\0{number}", room) for number in count(2))


def _of_shared(plain: str, schema: str) -> Iterator[str]:
    name = _ending(plain, f"_x{schema[:8]}") if schema else plain
    yield name
    yield from (_ending(name, f"_{number}") for number in count(2))


def _ending(name: str, end: str) -> str:
    return f"{name[: LONGEST - len(end)].rstrip('_')}{end}"


def _plain(tool: str) -> str:
    letters = without_accents(tool)
    written = _FOREIGN.sub("_", letters)
    stem = written.strip("_-")
    if not stem or len(written) > LONGEST or _loses_letters(letters):
        return _marked(stem or "tool", tool, LONGEST)
    return written


def _computer(computer: str) -> str:
    written = _FOREIGN.sub("_", without_accents(computer))
    stem = written.strip("_")
    if stem == computer and len(stem) <= _LONGEST_COMPUTER and not _MARKED.fullmatch(stem[-_MARK:]):
        return stem
    return _marked(stem or "computer", computer, _LONGEST_COMPUTER)


def _marked(stem: str, original: str, longest: int) -> str:
    digest = sha256(original.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{stem[: longest - _MARK].rstrip('_')}_x{digest}"


def without_accents(text: str) -> str:
    """Also without other differences of form: `ｆｕｌｌ` becomes `full`."""
    if text.isascii():
        return text
    letters = (each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return unicodedata.normalize("NFC", "".join(letters))  # Korean syllables were taken apart


def _loses_letters(text: str) -> bool:
    return not text.isascii() and any(each.isalnum() and not each.isascii() for each in text)
