"""JSON as people write it: with comments in every gap, and a comma wherever one may trail."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

__all__ = ["decorated", "gaps"]

gaps = st.lists(
    st.sampled_from(
        ["", " ", "\n", "\r\n", "\t", "//\n", "// , ] } \" ' \\ /* \n", "/**/", '/* // " , ] } * \n */', "/***/"]
    ),
    max_size=3,
).map("".join)


def decorated(value: Any, draw: Any) -> str:
    """The value as JSON, with comments in every gap and a comma wherever one may trail."""

    def gap() -> str:
        return str(draw(gaps))

    def items(inner: list[str], opening: str, closing: str) -> str:
        trailing = "," + gap() if inner and draw(st.booleans()) else ""
        return opening + gap() + ("," + gap()).join(inner) + trailing + closing

    def write(value: Any) -> str:
        if isinstance(value, list):
            return items([write(item) + gap() for item in value], "[", "]")
        if isinstance(value, dict):
            return items([json.dumps(key) + gap() + ":" + gap() + write(item) for key, item in value.items()], "{", "}")
        return json.dumps(value, ensure_ascii=bool(draw(st.booleans())))

    return gap() + write(value) + gap()
