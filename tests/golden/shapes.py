"""The shapes of messages: for each field the kind of its value, or the word, where the word is part of the protocol."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

from a2c_smcp import errors

__all__ = ["Shapes", "fields_of"]

WORDS = """
    a2c_cancel_reason a2c_version action answer approval by cacheScope code direction e2e error_code event kind level
    message method mode of outcome questions ran reason request resultType role source state type via
    a2c.answer a2c.outcome a2c.queue.name error.type gen_ai.operation.name mcp.method.name network.transport rpc.method
    rpc.system.name
""".split()  # noqa: SIM905
"""Fields whose words are part of the protocol."""
_EVENT, _WORD = re.compile(r"(client|server|notify):\w+"), re.compile(r"[\w./:-]{1,40}")
_CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.SMCPError)]
_TITLES = sorted({cls.title for cls in _CLASSES}, key=len, reverse=True)
_ERROR = re.compile(rf"(\d{{3,4}} )?({'|'.join(map(re.escape, _TITLES))})\b")


class Shapes:
    """The distinct shapes of messages by topic, and the places where each was seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], set[str]] = defaultdict(set)

    def add(self, topic: str, message: Any, place: str) -> None:
        self._seen[topic, "\n".join(f"  {line}" for line in fields_of(message))].add(place)

    def __str__(self) -> str:
        found = ((topic, ", ".join(sorted(places)), lines) for (topic, lines), places in self._seen.items())
        return "\n".join(f"{topic} ({places})\n{lines}\n" for topic, places, lines in sorted(found))


def fields_of(message: Any) -> list[str]:
    """A line for each field. Items of a list are described together."""
    found = _fields(message, "", "")
    return [f"{path.removeprefix('[].') or '-'}: {' | '.join(sorted(kinds))}" for path, kinds in sorted(found.items())]


def _fields(value: Any, path: str, name: str) -> dict[str, set[str]]:
    if isinstance(value, str) and name.startswith(("MCP_", "a2c_")) and value[:1] in ("{", "["):
        value, path = json.loads(value), f"{path}(json)"
    if isinstance(value, dict) and value:
        inner = [_fields(each, f"{path}.{key}".lstrip("."), key) for key, each in value.items()]
        return {where: kinds for fields in inner for where, kinds in fields.items()}
    if isinstance(value, list) and value:
        items = [_fields(each, f"{path}[]", name) for each in value]
        return {where: set().union(*(item.get(where, {"missing"}) for item in items)) for where in set().union(*items)}
    return {path: {_kind(value, name)}}


def _kind(value: Any, name: str) -> str:
    match value:
        case None | bool() | [] | {}:
            return json.dumps(value)
        case bytes():
            return "bytes"
        case str() if error := _ERROR.match(value):
            return f'"{error[0]} …"'
        case str() if _EVENT.fullmatch(value) or (name in WORDS and _WORD.fullmatch(value)):
            return json.dumps(value)
        case str():
            return "text"
        case _:
            return str(value) if name in WORDS else "number"
