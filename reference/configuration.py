"""The page of what can be configured: the models of configuration files, the Server's settings, variables."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import BaseModel

from a2c_smcp.cli.setup_files import NAMES, SetupOptions
from a2c_smcp.mcp_host.config import servers as model
from a2c_smcp.server import Limits, Settings
from reference import markdown
from reference.commands import environment
from reference.markdown import THIS_MACHINE, code, table
from reference.types import words

__all__ = ["MODELS", "page"]

MODELS: tuple[type[BaseModel], ...] = (
    model.StdioConfig,
    model.StdioParameters,
    model.StreamableConfig,
    model.StreamableParameters,
    model.SSEConfig,
    model.SSEParameters,
    model.ToolMeta,
    model.PromptStringInput,
    model.PickStringInput,
    model.PickOption,
    model.CommandInput,
)

_FILES = """\
A file of MCP servers is JSON, where comments and trailing commas are allowed, or TOML if its name ends in `.toml`. It
has one of these shapes:

- `{"servers": {name: server, …}, "inputs": [input, …]}`, the whole of it; `servers` may also be a list,
- `{"mcpServers": {name: server, …}}`, as other programs have it,
- a list of servers,
- one server.

A server may also be flat: what belongs to `server_parameters` stands beside the rest. Without a `type`, a `command`
means `stdio`; a `url` means `sse` if it ends in `/sse`, else `streamable`. `http` means `streamable`.

Fields that mean nothing here are kept and told of. `${input:id}` may stand in any value."""

_UP = f"""\
`a2c-smcp up` takes the first of {", ".join(map(code, NAMES))} in the current folder, or the `--config` it is given.
A table `server` in that file says where it listens and who it is:"""

_MEANINGS: dict[str, str] = {
    "name": "By which it is known; in a file, usually the key.",
    "type": "Which transport, or which kind of input.",
    "disabled": "Known, but not started.",
    "forbidden_tools": "Tools that are neither listed nor callable, as the server calls them.",
    "tool_meta": "What you say of single tools, by the name that the server gives them.",
    "default_tool_meta": "What you say of all others; `tool_meta` goes before it, field by field.",
    "vrl": "A VRL script over every result; needs the extra `vrl`.",
    "desktop": "`any`: its windows are shown even if it cannot tell of changes. Otherwise `--desktop` decides.",
    "secrets": "Names of variables, headers and flags that hold a secret (`true`) or none (`false`).",
    "server_parameters": "How to reach it.",
    "command": "The program; for an input, the command that prints the value.",
    "args": "Its arguments.",
    "env": "Variables, beside the few that every server gets (`PATH`, `HOME` …).",
    "cwd": "The folder it runs in.",
    "encoding": "Of its standard input and output.",
    "encoding_error_handler": "What happens to bytes that are not in this encoding.",
    "url": "Where it is.",
    "headers": "Sent with every request.",
    "timeout": "For a request; in seconds where it is a number.",
    "sse_read_timeout": "How long the stream may be silent; in seconds where it is a number.",
    "terminate_on_close": "Tell the server when the session ends.",
    "auto_apply": "It runs without asking you.",
    "alias": "The name under which agents see it.",
    "tags": "Words to choose tools by.",
    "ret_object_mapper": "Fields of one uniform object, each a JMESPath into the result.",
    "id": "What stands in `${input:id}`.",
    "description": "What you are asked.",
    "default": "The value if nobody gives one.",
    "password": "The value is a secret: not shown, not kept in files, masked in all that leaves.",
    "options": "What there is to choose from; a text, or a label and the value behind it.",
    "label": "What is shown.",
    "value": "What is used.",
    "host": "Address to listen on.",
    "port": "Port to listen on; 0 takes a free one.",
    "office": "The office that this machine joins.",
}
"""By field: a field means the same wherever it stands. One without a row is a fault."""


def page() -> str:
    return markdown.page(
        "Configuration",
        "## Files of MCP servers",
        _FILES,
        *(_model(each) for each in MODELS),
        "## The file of `up`",
        _UP,
        table(["field", "default", "means"], [_setting(field) for field in dataclasses.fields(SetupOptions)]),
        "## Environment",
        table(["variable", "option", "of"], [(code(each[0]), code(each[1]), each[2]) for each in environment()]),
        "`A2C_INPUT_<ID>` is the value of an input: `github-token` is read from `A2C_INPUT_GITHUB_TOKEN`.",
        "## The Server, in Python",
        "`a2c_smcp.server.Settings`, given to `create_app`:",
        _dataclass(Settings),
        "`a2c_smcp.server.Limits`, its `limits`; sizes in bytes, times in seconds:",
        _dataclass(Limits),
    )


def _model(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    required = schema.get("required", [])
    rows = [
        (code(name), words(field), "required" if name in required else _default(field), _MEANINGS[name])
        for name, field in schema["properties"].items()
    ]
    about = (model.__doc__ or "").split("\n\n")[0] if "__doc__" in vars(model) else ""
    parts = [f"### {model.__name__}", about, table(["field", "type", "default", "means"], rows)]
    return "\n\n".join(part for part in parts if part)


def _default(field: dict[str, Any]) -> str:
    if "const" in field:
        return ""
    default = field.get("default")
    spelled = {True: "true", False: "false"}.get(default, default) if isinstance(default, bool) else default
    return code(spelled) if default not in (None, "") else ""


def _setting(field: dataclasses.Field[Any]) -> tuple[str, str, str]:
    default = THIS_MACHINE if field.name == "name" else field.default
    return code(field.name), code(default), _MEANINGS[field.name]


def _dataclass(cls: Any) -> str:
    rows = [(code(field.name), code(field.type), _plain(field)) for field in dataclasses.fields(cls)]
    return table(["field", "type", "default"], rows)


def _plain(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return code(field.default)
    return code(f"{field.type}()")
