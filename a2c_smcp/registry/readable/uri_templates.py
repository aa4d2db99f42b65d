"""Templates of URIs (RFC 6570): which URIs a template stands for, and the values of its variables.

Of RFC 6570, templates of this program have `{name}` (one segment of a path), `{+name}` (may contain `/`) and, at the
end, `{?a,b}` (query parameters, each of which may be missing). The values come from strangers and often become parts of
file names, so a URI with `..` as a segment of a value does not match, and neither does an encoded slash in the value of
`{name}`.

Templates of other programs may use all of RFC 6570. Whether a URI belongs to one is known to that program alone:
`loose_matcher` finds those that may, and the program is asked for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

__all__ = ["MAX_URI", "URITemplate", "is_template", "loose_matcher", "variables_in"]

MAX_URI = 8192
"""Longer URIs match no template: the time to match may grow with the square of the length."""

_PARTS = re.compile(r"\{([^{}]*)\}|([^{}]+)|([{}])")
_ONE = re.compile(r"([+]?)([A-Za-z_]\w*)")
_QUERY = re.compile(r"\?([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*)")
_SLASHES = re.compile(r"[/\\]")
_EXPRESSION = re.compile(r"\{[^{}]*\}")


def is_template(uri: str) -> bool:
    return "{" in uri


class URITemplate:
    """A template, compiled. `required` and `optional` are the names of its variables."""

    def __init__(self, template: str) -> None:
        """Raises `ValueError` for a template that is malformed or uses other operators."""
        self.required: list[str] = []
        self.optional: list[str] = []
        self._one_segment: set[str] = set()
        pattern = ""
        for part in _PARTS.finditer(template):
            expression, literal, brace = part.groups()
            if brace or self.optional:
                raise ValueError(f"{template!r} is not a URI template: see the character {part.start() + 1}")
            pattern += re.escape(literal) if expression is None else self._group(expression)
        names = [*self.required, *self.optional]
        if len({*names}) < len(names):
            raise ValueError(f"{template!r} is not a URI template: a variable has two places")
        self._pattern = re.compile(pattern)

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of the variables; `None` if the template does not stand for this URI."""
        path, _, query = uri.partition("?") if self.optional else (uri, "", "")
        found = self._pattern.fullmatch(path) if len(uri) <= MAX_URI else None
        if found is None:
            return None
        values = {name: unquote(value) for name, value in found.groupdict().items()}
        given = parse_qsl(query, keep_blank_values=True)
        values |= {name: value for name, value in given if name in self.optional}
        return values if all(self._is_safe(name, value) for name, value in values.items()) else None

    def _group(self, expression: str) -> str:
        if query := _QUERY.fullmatch(expression):
            self.optional += query[1].split(",")
            return ""
        one = _ONE.fullmatch(expression)
        if one is None:
            raise ValueError(f"{{{expression}}} is not supported: use {{name}}, {{+name}}, or {{?a,b}} at the end")
        operator, name = one.groups()
        self.required.append(name)
        if operator:
            return f"(?P<{name}>.+)"
        self._one_segment.add(name)
        return f"(?P<{name}>[^/?#]+)"

    def _is_safe(self, name: str, value: str) -> bool:
        segments = _SLASHES.split(value)
        return ".." not in segments and (name not in self._one_segment or (len(segments) == 1 and value != "."))


def variables_in(template: str) -> list[str]:
    """The names of the variables of any template."""
    return re.findall(r"\w+", "".join(_EXPRESSION.findall(template)))


def loose_matcher(template: str) -> Callable[[str], dict[str, str] | None]:
    """Whether a URI may be one of the template: its fixed parts occur in their order. Gives `{"uri": …}`, or `None`.

    Not by a regular expression: with the number of variables its time could grow without a bound.
    """
    first, *others = _EXPRESSION.split(template)

    def match(uri: str) -> dict[str, str] | None:
        return {"uri": uri} if len(uri) <= MAX_URI and _has_in_order(uri, first, others) else None

    return match


def _has_in_order(uri: str, first: str, others: list[str]) -> bool:
    if not others:
        return uri == first
    if not uri.startswith(first):
        return False
    place = len(first)
    for part in others[:-1]:
        found = uri.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(uri) - place >= len(others[-1]) and uri.endswith(others[-1])
