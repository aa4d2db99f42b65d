"""The structure of MCP's messages: which of their words belong to the protocol, and which are content.

A secret may be an ordinary word, such as `content` or `production`. In a value it is masked. In a key that the protocol
defines it is not; nor is it in a name that an agent has to send back: of an argument, a server, a URI, a choice of a
schema. A secret that is not an ordinary word is masked in names, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


def all_of(structure: Structure, keys: str) -> dict[str, Structure]:
    return dict.fromkeys(keys.split(), structure)


ANYTHING = Structure()
NAME = Structure(is_name=True)
ARGUMENTS = Structure(named=True)
NAMES = Structure(named=True, others=NAME)

_KEYWORDS: dict[str, Structure] = {}
SCHEMA = Structure(_KEYWORDS)
_SCHEMAS = Structure(named=True, others=SCHEMA)
_KEYWORDS |= {
    **all_of(ANYTHING, "title description default examples $comment"),
    **all_of(NAME, "type enum const format pattern required readOnly writeOnly deprecated"),
    **all_of(NAME, "$schema $id $ref $anchor $dynamicRef $dynamicAnchor contentEncoding contentMediaType"),
    **all_of(NAME, "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength uniqueItems"),
    **all_of(NAME, "minItems maxItems minContains maxContains minProperties maxProperties"),
    **all_of(SCHEMA, "items prefixItems additionalItems unevaluatedItems contains additionalProperties propertyNames"),
    **all_of(SCHEMA, "unevaluatedProperties contentSchema allOf anyOf oneOf not if then else"),
    **all_of(_SCHEMAS, "properties patternProperties $defs definitions dependentSchemas"),
    **all_of(NAMES, "dependentRequired dependencies"),
}

CHANGED = Structure({"fields": NAME, "diff": ANYTHING})
"""The difference of a tool from the approved one: `ToolChange.to_wire`."""
_META = Structure(
    {
        "a2c_changed": CHANGED,
        **all_of(NAME, "a2c_cancelled a2c_cancel_reason a2c_timeout a2c_ret_object a2c_vrl_transformed"),
        **all_of(ANYTHING, "a2c_ret_object_error a2c_vrl_error"),
        **all_of(NAME, "error_code mcp_server"),
        "auth_hint": Structure({**all_of(NAME, "action server"), "message": ANYTHING}),
        "a2c_mcp_error": Structure({"code": NAME, **all_of(ANYTHING, "message data")}),
    }
)
DESCRIBED = {
    **all_of(NAME, "type uri mimeType size"),
    **all_of(ANYTHING, "text data blob name title description"),
    "annotations": Structure(all_of(NAME, "audience priority lastModified")),
    "icons": Structure(all_of(NAME, "src mimeType sizes theme")),
    "_meta": _META,
}
RESOURCE = Structure(DESCRIBED)
BLOCK = Structure({**DESCRIBED, "resource": RESOURCE})
REQUEST = Structure({**all_of(NAME, "mode url elicitationId"), "message": ANYTHING, "requestedSchema": SCHEMA})
"""The parameters of MCP's elicitation."""
_INPUT = Structure({"method": NAME, "params": REQUEST})
TOLD = Structure(
    {
        **all_of(NAME, "req_id question_id tool_name mcp_server uri level logger progress total approval"),
        **all_of(ANYTHING, "message data"),
        "request": _INPUT,
    }
)
"""A notice to one agent during a call or beside it: progress, a question, a log message, a change."""
_FAULT = Structure({"path": NAME, "message": ANYTHING})
_DETAILS = Structure(
    {
        **all_of(NAME, "toolId field server mcp_server capability uri size outcome mcp_code"),
        **all_of(NAME, "reason name rel_path total_size"),
        "mcp_message": ANYTHING,
        "changed": CHANGED,
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
        **all_of(NAME, "resultType requestState"),
        "inputRequests": Structure(named=True, others=_INPUT),
        "error": Structure(_ERROR),
        **_ERROR,
    }
)

_ICONS = Structure(all_of(NAME, "src mimeType sizes theme"))
LISTED = Structure(
    {
        **DESCRIBED,
        **all_of(NAME, "uriTemplate mime_type"),
        "annotations": Structure(all_of(NAME, "audience priority lastModified last_modified")),
    }
)
"""A resource or a template in a list."""
LISTED_PROMPT = Structure(
    {
        **DESCRIBED,
        **all_of(NAME, "name mcp_server"),
        "arguments": Structure({**all_of(NAME, "name required"), **all_of(ANYTHING, "title description")}),
    }
)
ABOUT_SERVER = Structure(
    {
        **all_of(NAME, "name bundle_id state"),
        **all_of(ANYTHING, "title version instructions"),
        "capabilities": NAMES,
        "icons": _ICONS,
        "auth": Structure({**all_of(NAME, "error_code action"), "message": ANYTHING}),
    }
)
