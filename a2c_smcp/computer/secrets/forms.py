"""The forms in which a secret may occur: as it is, line by line, in base64, in a URL, in JSON, in Python.

And an index that finds the forms in a text without searching for each of them.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, quote_plus

__all__ = ["SHORTEST_LINE", "Form", "Index", "forms_of", "lines_of", "whole_forms_of"]

SHORTEST_LINE = 16
"""In a secret of several lines, each line of so many characters is a secret by itself (WIRE §5)."""

_URL_SAFE = str.maketrans("+/", "-_")
_SAFE = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")  # all, a path, JavaScript's encodeURIComponent and encodeURI
_ESCAPE = re.compile("%[0-9A-F]{2}")
_LINE_BREAK = re.compile(r"\r\n|[\r\n]|(?:\\r)?\\n")  # also as JSON and shells write it
_FENCE = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")


class Form(NamedTuple):
    """A text that gives a secret away.

    `before` and `after`: the number of base64 characters before and after it that also encode part of the secret. One
    that `is_whole` counts only if it is not a part of a longer word.
    """

    text: str
    before: int = 0
    after: int = 0
    is_whole: bool = False


def forms_of(secret: str) -> set[Form]:
    """Every form of a secret that is searched for.

    Base64 is found inside longer base64, wherever the secret begins in it, unless a line break is inside.
    Percent-encodings are those of common encoders, with digits in either case; mixtures are not found.
    """
    raw = secret.encode("utf-8", "surrogatepass")
    return {Form(text) for text in _written(secret, raw)} | set(_in_base64(raw))


def whole_forms_of(secret: str) -> set[Form]:
    """The forms of a secret that is too short, or too ordinary, to be searched for inside words."""
    raw = secret.encode("utf-8", "surrogatepass")
    encoded = b64encode(raw).decode().rstrip("=")
    return {Form(text, is_whole=True) for text in {*_written(secret, raw), encoded, encoded.translate(_URL_SAFE)}}


def lines_of(secret: str) -> set[str]:
    """The lines of a secret such as a key, without indentation and line ends. BEGIN and END lines are no secrets."""
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
    """For each of the three alignments in base64: the characters that do not depend on the bytes around the secret."""
    for offset in range(3):
        start, end = 8 * offset, 8 * (offset + len(raw))  # in bits, of which a character holds six
        text = b64encode(bytes(offset) + raw).decode()[-(-start // 6) : end // 6]
        for each in (text, text.translate(_URL_SAFE)):
            yield Form(each, before=int(start % 6 > 0), after=int(end % 6 > 0))


_WORD = 4  # bytes
_AT_ONCE = 16_384  # words that are looked up at a time: between them, a thread lets others run
_INDEXED = 2 * _WORD - 1  # a text of so many bytes holds a whole aligned word, wherever it begins
_WHOLE_NUMBER = re.compile("-?[1-9][0-9]{0,99}")


class Index:
    """Finds the few forms that may be in a text.

    A text is read as words of four bytes, at every fourth byte only. A form of at least seven bytes that is somewhere
    in the text covers a whole one of these words, which begins at one of the first four bytes of the form. These four
    possible words of each form are the index. Shorter forms are always candidates.
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
        found = frozenset[int]()
        for start in range(0, len(words), _AT_ONCE):
            found |= self._words.intersection(words[start : start + _AT_ONCE])
        return self._others.union(*(self._by_word[word] for word in found))
