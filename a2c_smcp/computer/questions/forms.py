"""The content of a form: defaults for fields that were left out, checks against its schema, which fields are secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.computer.secrets.rules import hints_at_secret
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.questions import Question
from a2c_smcp.registry.schemas.check import Fault, Schema, find_faults_async, pointer

__all__ = ["asks_for_secret", "check_content", "complete", "secret_fields", "secrets_in_content"]

_DEEPEST = 32
_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(?:\.[^@\s.]+)*")


def secret_fields(question: Question) -> frozenset[str]:
    """The fields of a form that ask for a secret: their name or their title says so (WIRE §5)."""
    return frozenset(name for name, schema in question.fields.items() if _is_secret(name, schema))


def asks_for_secret(question: Question) -> bool:
    """Whether a form has a secret field, also one that its schema hides deeper than MCP's forms go."""
    return any(_is_secret(name, schema) for name, schema in _all_fields(question.schema))


def secrets_in_content(question: Question, content: Mapping[str, Any] | None) -> list[str]:
    """The values that were given for secret fields, as texts. A name counts, whatever the schema says."""
    given = _secret_leaves(content or {}, secret_fields(question))
    return [str(text) for text in given if isinstance(text, str | int | float) and not isinstance(text, bool)]


def complete(schema: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the defaults of the fields that it leaves out (MCP's SEP-1034)."""
    properties = schema.get("properties")
    fields = properties.items() if isinstance(properties, Mapping) else ()
    defaults = {name: each["default"] for name, each in fields if isinstance(each, Mapping) and "default" in each}
    return {**defaults, **content}


async def check_content(schema: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise `BadRequest` if the content does not fit: `details["errors"]` has a JSON pointer and a message per fault.

    Messages quote no value. Raises `SchemaTooHeavy` as the check of arguments does.
    """
    faults = await find_faults_async(Schema(dict(schema)), dict(content)) or _format_faults(schema, content)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise BadRequest(f"content{faults[0]['path']}: {faults[0]['message']}{more}", field="content", errors=faults)


def _all_fields(schema: object, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The fields of a schema and of all schemas in it. Choices of a field are no fields: `const` has none."""
    if depth > _DEEPEST or not isinstance(schema, Mapping | list):
        return
    if isinstance(schema, list):
        for each in schema:
            yield from _all_fields(each, depth + 1)
        return
    yield from Question("", schema=schema).fields.items()
    for each in schema.values():
        yield from _all_fields(each, depth + 1)


def _secret_leaves(content: Mapping[str, Any], known: frozenset[str]) -> Iterator[object]:
    for name, value in content.items():
        if name in known or hints_at_secret(str(name)):
            yield from _leaves(value)
        elif isinstance(value, Mapping):
            yield from _secret_leaves(value, known)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)
    else:
        yield value


def _is_secret(name: str, schema: Mapping[str, Any]) -> bool:
    title = schema.get("title")
    told = schema.get("format") == "password" or schema.get("writeOnly") is True
    return told or hints_at_secret(name) or (isinstance(title, str) and hints_at_secret(title))


# Formats: MCP's forms have four, which JSON schema only notes


def _is_uri(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and (parts.netloc or parts.path)) and not re.search(r"\s", text)


def _is_date_time(text: str) -> bool:
    return "T" in text.upper() and datetime.fromisoformat(text.upper()).tzinfo is not None


def _is_date(text: str) -> bool:
    return len(text) == len("2026-07-28") and bool(date.fromisoformat(text))


_FORMATS: dict[object, Callable[[str], object]] = {
    "email": _EMAIL.fullmatch,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_date_time,
}


def _format_faults(schema: Mapping[str, Any], content: Mapping[str, Any]) -> list[Fault]:
    fields = Question("", schema=schema).fields
    return [
        {"path": pointer([name]), "message": f"is not of the format {fields[name]['format']!r}"}
        for name, value in content.items()
        if isinstance(value, str) and name in fields and not _has_format(value, fields[name].get("format"))
    ]


def _has_format(value: str, wanted: object) -> bool:
    check = _FORMATS.get(wanted) if isinstance(wanted, str) else None
    try:
        return check is None or bool(check(value))
    except ValueError:
        return False
