"""The ways in which a secret may be written: as it is, line by line, in base64, in a URL, in JSON, in Python."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, quote_plus

__all__ = ["SHORTEST_LINE", "Form", "Index", "forms_of", "lines_of", "whole_forms_of"]

SHORTEST_LINE = 16
"""Of a secret of several lines, each line of so many characters is one by itself (WIRE §5)."""

_URL_SAFE = str.maketrans("+/", "-_")
_SAFE = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")  # all, a path, JavaScript's encodeURIComponent and encodeURI
_ESCAPE = re.compile("%[0-9A-F]{2}")
_LINE_BREAK = re.compile(r"\r\n|[\r\n]|(?:\\r)?\\n")  # also as JSON and shells write it
_FENCE = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")


class Form(NamedTuple):
    """A piece of text that gives a secret away, and how many characters beside it hold a few more of its bits.

    `is_whole`: only where it is no part of a longer word.
    """

    text: str
    before: int = 0
    after: int = 0
    is_whole: bool = False


def forms_of(secret: str) -> set[Form]:
    """Every form that is searched for.

    Base64 is found inside a longer text too, wherever the secret begins in it, unless a line break comes between.
    Percent-encodings are those of common encoders, with digits in either case; a mixture of them is not found.
    """
    raw = secret.encode("utf-8", "surrogatepass")
    return {Form(text) for text in _written(secret, raw)} | set(_in_base64(raw))


def whole_forms_of(secret: str) -> set[Form]:
    """The forms of a secret that would be found everywhere if it were searched for inside words."""
    raw = secret.encode("utf-8", "surrogatepass")
    encoded = b64encode(raw).decode().rstrip("=")
    return {Form(text, is_whole=True) for text in {*_written(secret, raw), encoded, encoded.translate(_URL_SAFE)}}


def lines_of(secret: str) -> set[str]:
    """The lines of a key, say, however they are indented or ended where it turns up again. Its fences are no secret."""
    lines = [line.strip() for line in _LINE_BREAK.split(secret)]
    if len(lines) == 1:
        return set()
    return {line for line in lines if len(line) >= SHORTEST_LINE and not _FENCE.fullmatch(line)}


def _written(secret: str, raw: bytes) -> set[str]:
    return {secret, *_escaped(secret), *_percent_encoded(raw)}


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


_WORD = 4  # bytes
_INDEXED = 2 * _WORD - 1  # a text of so many bytes holds a whole aligned word, wherever it begins
_WHOLE_NUMBER = re.compile("-?[1-9][0-9]{0,99}")


class Index:
    """Finds the few forms that may be in a text.

    A text is read as words of four bytes. A form of at least seven bytes that is somewhere in it covers one of those
    words, which begins at one of the first four bytes of the form. So a look at a quarter of the positions will do.
    """

    def __init__(self, secrets: Iterable[str], forms: Callable[[str], set[Form]] = forms_of) -> None:
        secrets = tuple(secrets)
        self.numbers = frozenset(int(secret) for secret in secrets if _WHOLE_NUMBER.fullmatch(secret))
        self._by_word: dict[int, set[Form]] = {}
        self._others: set[Form] = set()
        for form in {form for secret in secrets for form in forms(secret)}:
            raw = form.text.encode("utf-8", "surrogatepass")
            if len(raw) < _INDEXED:
                self._others.add(form)
                continue
            for start in range(_WORD):
                word = memoryview(raw[start : start + _WORD]).cast("I")[0]
                self._by_word.setdefault(word, set()).add(form)
        self._words = frozenset(self._by_word)

    def likely_in(self, text: str) -> set[Form]:
        raw = text.encode("utf-8", "surrogatepass")
        words = memoryview(raw)[: len(raw) // _WORD * _WORD].cast("I")
        return self._others.union(*(self._by_word[word] for word in self._words.intersection(words)))
