"""The structure of messages that leave the Computer: which of their words belong to the protocol and are not masked.

A secret may be an ordinary word, such as `content` or `production`. In a value it is masked. In a key that the protocol
defines it is not; nor is it in a name that an agent has to send back: of an argument, a server, a URI, a choice of a
schema. A secret that is not an ordinary word is masked in names, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from a2c_smcp.mcp_host.config.servers import (
    INPUT_CONTENTS,
    PARAMETER_CONTENTS,
    SERVER_CONTENTS,
    SIGN_IN_CONTENTS,
    TOOL_META_CONTENTS,
    FieldContent,
)

__all__ = [
    "ANSWER",
    "ANYTHING",
    "ARGUMENTS",
    "BLOCK",
    "CONFIG",
    "NAME",
    "READ",
    "REQUEST",
    "RESOURCE",
    "SERVER",
    "SKILL",
    "TOOL",
    "Structure",
    "is_word",
]

_LONGEST = 32
_WORD = "(?:[A-Z]?[a-z]{2,16}(?:[A-Z][a-z]{2,16})*|[A-Z]{2,16})"
_WORDS = re.compile(rf"{_WORD}(?:[ _./+:-]{_WORD})*")


@dataclass(frozen=True)
class Structure:
    """The structure of one part of a message. The items of a list have the structure of the list.

    `fields` are the keys that the protocol defines, with the structure of their values. The values of all other keys
    have the structure `others`; these keys are names if `named`. In a text that `is_name`, ordinary words and numbers
    are not masked.
    """

    fields: Mapping[str, Structure] = field(default_factory=dict)
    others: Structure | None = None
    named: bool = False
    is_name: bool = False


def is_word(text: str) -> bool:
    """Whether a text reads like `production`, `us-east`, `inputSchema` or `text/plain`. Credentials do not."""
    return len(text) <= _LONGEST and _WORDS.fullmatch(text) is not None


def _all(structure: Structure, keys: str) -> dict[str, Structure]:
    return dict.fromkeys(keys.split(), structure)


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
        **_all(NAME, "name bundle_id mcp_server"),
        "description": ANYTHING,
        **_all(_SCHEMA, "params_schema return_schema"),
        "meta": Structure(
            _all(NAME, "a2c_tool_meta MCP_TOOL_ANNOTATION MCP_TOOL_TITLE MCP_TOOL_ICONS MCP_TOOL_EXECUTION")
            | _all(NAME, "a2c_tags_of_server a2c_changed")
        ),
    }
)

SKILL = Structure(
    {
        **_all(NAME, "name source path uri version allowed_tools tags"),
        **_all(ANYTHING, "description license compatibility skill_metadata"),
    }
)

_CHANGED = Structure({"fields": NAME, "diff": ANYTHING})
"""How a tool differs from what was approved: `ToolChange.to_wire`."""
_META = Structure(
    {
        "a2c_changed": _CHANGED,
        **_all(NAME, "a2c_cancelled a2c_cancel_reason a2c_timeout a2c_ret_object a2c_vrl_transformed"),
        **_all(ANYTHING, "a2c_ret_object_error a2c_vrl_error"),
        **_all(NAME, "error_code mcp_server"),
        "auth_hint": Structure({**_all(NAME, "action server"), "message": ANYTHING}),
        "a2c_mcp_error": Structure({"code": NAME, **_all(ANYTHING, "message data")}),
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
REQUEST = Structure({**_all(NAME, "mode url elicitationId"), "message": ANYTHING, "requestedSchema": _SCHEMA})
"""The parameters of MCP's elicitation."""
_INPUT = Structure({"method": NAME, "params": REQUEST})
_FAULT = Structure({"path": NAME, "message": ANYTHING})
_DETAILS = Structure(
    {
        **_all(NAME, "toolId field server mcp_server capability uri size outcome mcp_code"),
        **_all(NAME, "reason name rel_path total_size"),
        "mcp_message": ANYTHING,
        "changed": _CHANGED,
        "auth_hint": Structure({"action": NAME, "message": ANYTHING}),
        "errors": _FAULT,
    }
)
_ERROR = {"code": NAME, "message": ANYTHING, "details": _DETAILS}
ANSWER = Structure(
    {
        "content": BLOCK,
        "structuredContent": ANYTHING,
        "isError": NAME,
        "_meta": _META,
        **_all(NAME, "resultType requestState"),
        "inputRequests": Structure(named=True, others=_INPUT),
        "error": Structure(_ERROR),
        **_ERROR,
    }
)

_ICONS = Structure(_all(NAME, "src mimeType sizes theme"))
_LISTED = Structure(
    {
        **_DESCRIBED,
        **_all(NAME, "uriTemplate mime_type"),
        "annotations": Structure(_all(NAME, "audience priority lastModified last_modified")),
    }
)
"""A resource or a template in a list."""
_PROMPT = Structure(
    {
        **_DESCRIBED,
        **_all(NAME, "name mcp_server"),
        "arguments": Structure({**_all(NAME, "name required"), **_all(ANYTHING, "title description")}),
    }
)
_ABOUT_SERVER = Structure(
    {
        **_all(NAME, "name bundle_id state"),
        **_all(ANYTHING, "title version instructions"),
        "capabilities": _NAMES,
        "icons": _ICONS,
        "auth": Structure({**_all(NAME, "error_code action"), "message": ANYTHING}),
    }
)
READ = Structure(
    {
        **ANSWER.fields,
        "servers": _ABOUT_SERVER,
        **_all(_LISTED, "resources resource_templates"),
        "prompts": _PROMPT,
        **_all(NAME, "next_cursor ttlMs cacheScope"),
        "contents": RESOURCE,
        "description": ANYTHING,
        "messages": Structure({"role": NAME, "content": BLOCK}),
        "completion": Structure({"values": ANYTHING, **_all(NAME, "total hasMore")}),
    }
)
"""What agents read of MCP servers."""

_SIGN_IN: dict[str, Structure] = {}
_STRUCTURES: Mapping[FieldContent, Structure] = {
    FieldContent.NAME: NAME,
    FieldContent.NAMES: _NAMES,
    FieldContent.SETTING: NAME,
    FieldContent.PROSE: ANYTHING,
    FieldContent.PATH: ANYTHING,
    FieldContent.COMMAND: ANYTHING,
    FieldContent.URL: ANYTHING,
    FieldContent.ARGUMENTS: ANYTHING,
    FieldContent.OPTIONS: ARGUMENTS,
    FieldContent.PAIRS: ARGUMENTS,
    FieldContent.SECRET: ANYTHING,
    FieldContent.DEFAULT: ANYTHING,
    FieldContent.SIGN_IN: Structure(_SIGN_IN),
}


def _by_content(contents: Mapping[str, FieldContent]) -> dict[str, Structure]:
    return {name: _STRUCTURES[content] for name, content in contents.items()}


_SIGN_IN |= _by_content(SIGN_IN_CONTENTS)
_TOOL_META = Structure(_by_content(TOOL_META_CONTENTS))
SERVER = Structure(
    {
        **_by_content(SERVER_CONTENTS),
        "tool_meta": Structure(named=True, others=_TOOL_META),
        "default_tool_meta": _TOOL_META,
        "server_parameters": Structure(_by_content(PARAMETER_CONTENTS)),
    }
)
_INPUT_DEFINITION = Structure(
    {**_by_content(INPUT_CONTENTS), "options": Structure(_all(NAME, "label value"), is_name=True)}
)
CONFIG = Structure({"servers": Structure(named=True, others=SERVER), "inputs": _INPUT_DEFINITION})
