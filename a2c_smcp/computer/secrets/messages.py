"""Where the protocol's own words stand in what leaves the Computer. There they stay, whatever the secrets are.

A secret may be an ordinary word, such as `content` or `production`. As a value it is masked. The keys that the protocol
defines are not; nor are words in names, which are what somebody has to say back to be understood: arguments, servers,
URIs, the choices of a schema. What is no word is masked there too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "ANSWER",
    "ANYTHING",
    "ARGUMENTS",
    "BLOCK",
    "CONFIG",
    "NAME",
    "RESOURCE",
    "SERVER",
    "TOOL",
    "Structure",
    "is_word",
]

_LONGEST = 32
_WORD = "(?:[A-Z]?[a-z]{2,16}(?:[A-Z][a-z]{2,16})*|[A-Z]{2,16})"
_WORDS = re.compile(rf"{_WORD}(?:[ _./+:-]{_WORD})*")


@dataclass(frozen=True)
class Structure:
    """What stands at one place of a message. The items of a list stand where it does.

    `fields` are the keys that the protocol defines there. The values of all other keys stand at `others`; those keys
    are names themselves if they are `named`. In a text that `is_name` words stay, and numbers stay there, too.
    """

    fields: Mapping[str, Structure] = field(default_factory=dict)
    others: Structure | None = None
    named: bool = False
    is_name: bool = False


def is_word(text: str) -> bool:
    """Whether it reads like `production`, `us-east`, `inputSchema` or `text/plain`, which no credential does."""
    return len(text) <= _LONGEST and _WORDS.fullmatch(text) is not None


def _all(place: Structure, keys: str) -> dict[str, Structure]:
    return dict.fromkeys(keys.split(), place)


ANYTHING = Structure()
NAME = Structure(is_name=True)
ARGUMENTS = Structure(named=True)
_NAMES = Structure(named=True, others=NAME)

_KEYWORDS: dict[str, Structure] = {}
_SCHEMA = Structure(_KEYWORDS)
_SCHEMAS = Structure(named=True, others=_SCHEMA)
_KEYWORDS |= {
    **_all(ANYTHING, "title description default examples $comment"),
    **_all(NAME, "type enum const format pattern required readOnly writeOnly deprecated"),
    **_all(NAME, "$schema $id $ref $anchor $dynamicRef $dynamicAnchor contentEncoding contentMediaType"),
    **_all(NAME, "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength uniqueItems"),
    **_all(NAME, "minItems maxItems minContains maxContains minProperties maxProperties"),
    **_all(_SCHEMA, "items prefixItems additionalItems unevaluatedItems contains additionalProperties propertyNames"),
    **_all(_SCHEMA, "unevaluatedProperties contentSchema allOf anyOf oneOf not if then else"),
    **_all(_SCHEMAS, "properties patternProperties $defs definitions dependentSchemas"),
    **_all(_NAMES, "dependentRequired dependencies"),
}

TOOL = Structure(
    {
        **_all(NAME, "name bundle_id"),
        "description": ANYTHING,
        **_all(_SCHEMA, "params_schema return_schema"),
        "meta": Structure(_all(NAME, "a2c_tool_meta MCP_TOOL_ANNOTATION")),
    }
)

_META = Structure(
    {
        **_all(NAME, "a2c_cancelled a2c_ret_object a2c_vrl_transformed"),
        **_all(ANYTHING, "a2c_ret_object_error a2c_vrl_error"),
    }
)
_DESCRIBED = {
    **_all(NAME, "type uri mimeType size"),
    **_all(ANYTHING, "text data blob name title description"),
    "annotations": Structure(_all(NAME, "audience priority lastModified")),
    "icons": Structure(_all(NAME, "src mimeType sizes theme")),
    "_meta": _META,
}
RESOURCE = Structure(_DESCRIBED)
BLOCK = Structure({**_DESCRIBED, "resource": RESOURCE})
_FAULT = Structure({"path": NAME, "message": ANYTHING})
_DETAILS = Structure(
    {**_all(NAME, "toolId field server size outcome mcp_code"), "mcp_message": ANYTHING, "errors": _FAULT}
)
_ERROR = {"code": NAME, "message": ANYTHING, "details": _DETAILS}
ANSWER = Structure(
    {
        "content": BLOCK,
        "structuredContent": ANYTHING,
        "isError": NAME,
        "_meta": _META,
        "error": Structure(_ERROR),
        **_ERROR,
    }
)

_TOOL_META = Structure({**_all(NAME, "auto_apply alias tags"), "ret_object_mapper": _NAMES})
_PARAMETERS = Structure(
    {
        **_all(ANYTHING, "command args cwd url"),
        **_all(NAME, "encoding encoding_error_handler timeout sse_read_timeout terminate_on_close"),
        **_all(Structure(named=True), "env headers"),
    }
)
SERVER = Structure(
    {
        **_all(NAME, "name type disabled forbidden_tools desktop"),
        "tool_meta": Structure(named=True, others=_TOOL_META),
        "default_tool_meta": _TOOL_META,
        "vrl": ANYTHING,
        "server_parameters": _PARAMETERS,
    }
)
_INPUT = Structure(
    {
        **_all(NAME, "id type options password"),
        **_all(ANYTHING, "description default command"),
        "args": Structure(named=True),
    }
)
CONFIG = Structure({"servers": Structure(named=True, others=SERVER), "inputs": _INPUT})
