"""The ways in which a secret may be written: as it is, in base64, in a URL, in JSON, in Python."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, quote_plus

__all__ = ["Form", "forms_of"]

_URL_SAFE = str.maketrans("+/", "-_")
_SAFE = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")  # all, a path, JavaScript's encodeURIComponent and encodeURI
_ESCAPE = re.compile("%[0-9A-F]{2}")


class Form(NamedTuple):
    """A piece of text that gives a secret away, and how many characters beside it hold a few more of its bits."""

    text: str
    before: int = 0
    after: int = 0


def forms_of(secret: str) -> set[Form]:
    """Every form that is searched for.

    Base64 is found inside a longer text too, wherever the secret begins in it, unless a line break comes between.
    Percent-encodings are those of common encoders, with digits in either case; a mixture of them is not found.
    """
    raw = secret.encode("utf-8", "surrogatepass")
    written = {secret, *_escaped(secret), *_percent_encoded(raw)}
    return {Form(text) for text in written} | set(_in_base64(raw))


def _escaped(secret: str) -> Iterator[str]:
    for ascii_only in (True, False):
        text = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield text
        yield text.replace("/", "\\/")
    yield repr(secret)[1:-1]


def _percent_encoded(raw: bytes) -> Iterator[str]:
    for text in (quote_plus(raw), *(quote(raw, safe) for safe in _SAFE)):
        yield text
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), text)


def _in_base64(raw: bytes) -> Iterator[Form]:
    """The characters that are the same whatever stands around the secret, for each of the three ways to be aligned."""
    for offset in range(3):
        start, end = 8 * offset, 8 * (offset + len(raw))  # in bits, of which a character holds six
        text = b64encode(bytes(offset) + raw).decode()[-(-start // 6) : end // 6]
        for each in (text, text.translate(_URL_SAFE)):
            yield Form(each, before=int(start % 6 > 0), after=int(end % 6 > 0))
