"""Which words of a computer's answers are never masked: the structures of `protocol/`, and those of its own data."""

from __future__ import annotations

import re
from collections.abc import Mapping

from a2c_smcp.mcp_host.config.servers import (
    INPUT_CONTENTS,
    PARAMETER_CONTENTS,
    SERVER_CONTENTS,
    SIGN_IN_CONTENTS,
    TOOL_META_CONTENTS,
    FieldContent,
)
from a2c_smcp.protocol.operations import OPERATIONS
from a2c_smcp.protocol.structure import ANSWER, ANYTHING, ARGUMENTS, NAME, NAMES, SCHEMA, Structure, all_of

_LONGEST = 32
_WORD = "(?:[A-Z]?[a-z]{2,16}(?:[A-Z][a-z]{2,16})*|[A-Z]{2,16})"
_WORDS = re.compile(rf"{_WORD}(?:[ _./+:-]{_WORD})*")


def is_word(text: str) -> bool:
    """True for a text like `production`, `us-east`, `inputSchema` or `text/plain`. Credentials do not."""
    return len(text) <= _LONGEST and _WORDS.fullmatch(text) is not None


TOOL = Structure(
    {
        **all_of(NAME, "name bundle_id mcp_server"),
        "description": ANYTHING,
        **all_of(SCHEMA, "params_schema return_schema"),
        "meta": Structure(
            all_of(NAME, "a2c_tool_meta MCP_TOOL_ANNOTATION MCP_TOOL_TITLE MCP_TOOL_ICONS MCP_TOOL_EXECUTION")
            | all_of(NAME, "a2c_tags_of_server a2c_changed")
        ),
    }
)

SKILL = Structure(
    {
        **all_of(NAME, "name source path uri version allowed_tools tags"),
        **all_of(ANYTHING, "description license compatibility skill_metadata"),
    }
)


def _joined(*parts: Mapping[str, Structure]) -> dict[str, Structure]:
    """All fields. Raises `ValueError` if a field has two structures: one of them would not count."""
    fields: dict[str, Structure] = {}
    for part in parts:
        for name, structure in part.items():
            if fields.setdefault(name, structure) is not structure:
                raise ValueError(f"two rows of OPERATIONS have the field {name!r}, with different structures")
    return fields


READ = Structure(
    _joined(
        ANSWER.fields,
        all_of(NAME, "next_cursor ttlMs cacheScope"),
        *(operation.result for operation in OPERATIONS),
    )
)
"""Answers to agents that read from MCP servers: the fields of all rows, of which none has two meanings."""

_SIGN_IN: dict[str, Structure] = {}
_STRUCTURES: Mapping[FieldContent, Structure] = {
    FieldContent.NAME: NAME,
    FieldContent.NAMES: NAMES,
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
    {**_by_content(INPUT_CONTENTS), "options": Structure(all_of(NAME, "label value"), is_name=True)}
)
CONFIG = Structure({"servers": Structure(named=True, others=SERVER), "inputs": _INPUT_DEFINITION})
