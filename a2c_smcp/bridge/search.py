"""Finds tools by words: BM25 over names, descriptions and parameters, in this process, without a model.

Words are compared without case, accents and common English endings; identifiers are taken apart (`readFile`,
`read_file`). Chinese, Japanese and Korean text has no spaces: there, every two neighbouring characters are a word. A
word that few tools have counts more than one that many have, and a word in a name more than one in a description.

Only words are compared, not meanings: a search for "picture" does not find a tool that says "image" only.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import Any

from a2c_smcp.bridge.names import without_accents

_WEIGHTS = {"name": 3.0, "title": 2.0, "description": 1.0, "parameter": 1.0, "about parameter": 0.5, "hint": 1.0}
_SATURATION, _LENGTH = 1.2, 0.5  # k1 and b of BM25
_LONGEST_TEXT = 4_000

_CJK = r"\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"(?P<cjk>[{_CJK}]+)|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z{_CJK}]+")
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about an and any are as at be but by can did do does for from has have how i if in into is it its me my not"
        " of on one or please so than that the their them then there this to up use using want was we what when where"
        " which who why will with you your",
    )
)
_ENDINGS = (
    *(("ies", "y", 5), ("sses", "ss", 5), ("shes", "sh", 5), ("ches", "ch", 5), ("xes", "x", 4)),
    *(("ations", "at", 8), ("ation", "at", 7), ("ions", "", 7), ("ion", "", 6), ("ings", "", 7), ("ing", "", 6)),
    *(("ss", "ss", 3), ("us", "us", 3), ("is", "is", 3), ("s", "", 4), ("ied", "y", 5), ("ed", "", 5)),
)
"""An ending, what takes its place, and how long a word must be at least. The first that fits is used."""


class ToolIndex:
    """The words of tools, to be searched. The tools are MCP's, with names; `hints` are further words for each."""

    def __init__(self, listings: Sequence[Mapping[str, Any]], hints: Sequence[str] = ()) -> None:
        self._postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self._count = len(listings)
        counts = [_weighted(listing) for listing in listings]
        lengths = [sum(words.values()) for words in counts]
        usual = sum(lengths) / max(len(lengths), 1) or 1.0
        for words, hint in zip(counts, hints, strict=False):
            for word in words_in(hint):
                words[word] += _WEIGHTS["hint"]
        for number, (words, length) in enumerate(zip(counts, lengths, strict=True)):
            norm = _SATURATION * (1 - _LENGTH + _LENGTH * length / usual)
            for word, weight in words.items():
                self._postings[word].append((number, weight / (weight + norm)))

    def search(self, query: str, limit: int) -> list[int]:
        """The numbers of the best matches, the best first, without tools that have no word of the query."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words_in(query)):
            postings = self._postings.get(word, ())
            rarity = math.log(1 + (self._count - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, score in postings:
                scores[number] += rarity * score
        return nsmallest(limit, scores, key=lambda number: (-scores[number], number))


def words_in(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    return [*_words_in(text[:_LONGEST_TEXT])]


@lru_cache(maxsize=4096)
def _words_in(text: str) -> tuple[str, ...]:
    return tuple(_split(without_accents(text)))


def _split(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match[0]
        if match["cjk"] is None:
            if (word := word.casefold()) not in _STOP_WORDS:
                yield _stem(word)
        elif len(word) == 1:
            yield word
        else:
            yield from (word[begin : begin + 2] for begin in range(len(word) - 1))


def _stem(word: str) -> str:
    for ending, instead, shortest in _ENDINGS:
        if len(word) >= shortest and word.endswith(ending):
            word = word.removesuffix(ending) + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]  # stopped, stop
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def _weighted(listing: Mapping[str, Any]) -> defaultdict[str, float]:
    counts: defaultdict[str, float] = defaultdict(float)
    for kind, text in _texts(listing):
        for word in words_in(text):
            counts[word] += _WEIGHTS[kind]
    return counts


def _texts(listing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a tool that comes from a computer, which may have sent anything."""
    texts = [(kind, listing.get(kind)) for kind in ("name", "title", "description")]
    for name, about in _object(_object(listing.get("inputSchema")).get("properties")).items():
        texts += [("parameter", name), ("about parameter", _object(about).get("description"))]
    yield from ((kind, text) for kind, text in texts if isinstance(text, str))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
