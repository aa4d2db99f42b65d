"""Which forms of secrets may be in a text, without trying each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from a2c_smcp.computer.secrets.forms import Form, forms_of

__all__ = ["Index"]

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
