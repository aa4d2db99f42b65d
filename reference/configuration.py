"""The page of configuration: the models of configuration files, the Server's settings, environment variables."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import BaseModel

from a2c_smcp.cli.setup_files import NAMES, SetupOptions
from a2c_smcp.computer.consent.programs import ScannerConfig
from a2c_smcp.computer.consent.rules import AccessPolicy, BudgetEntry, PolicyRule, ServerStatement
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
    model.SandboxSettings,
    model.StreamableConfig,
    model.StreamableParameters,
    model.SSEConfig,
    model.SSEParameters,
    model.SignInSettings,
    model.ToolMeta,
    model.PromptStringInput,
    model.PickStringInput,
    model.PickOption,
    model.CommandInput,
    ScannerConfig,
)

_FILES = """\
A file of MCP servers is JSON, with comments and trailing commas allowed, or TOML if its name ends in `.toml`. It
has one of these forms:

- `{"servers": {name: server, …}, "inputs": [input, …], "scanners": [scanner, …]}`, the full form; `servers` may
  also be a list,
- `{"mcpServers": {name: server, …}}`, the form of other programs,
- a list of servers,
- one server.

A server may also be flat, with the fields of `server_parameters` beside the others. Without a `type`, a `command`
means `stdio`; a `url` means `sse` if it ends in `/sse`, else `streamable`. `http` means `streamable`.

Unknown fields are kept, with a warning. `${input:id}` may be used in any value."""

_UP = f"""\
`a2c-smcp up` uses the first of {", ".join(map(code, NAMES))} in the current folder, or the file given with `--config`.
A table `server` in that file sets its address, its office and its name:"""

_MEANINGS: dict[str, str] = {
    "name": "The name of the server, the computer or the scanner; in a file of servers, usually the key.",
    "type": "The transport, or the kind of input.",
    "disabled": "Configured, but not started.",
    "forbidden_tools": "Tools that are neither listed nor callable, by the names that the server uses.",
    "tool_meta": "Settings of single tools, by the names that the server uses.",
    "default_tool_meta": "Settings of all other tools; `tool_meta` takes precedence, field by field.",
    "vrl": "A VRL script that transforms every result; needs the extra `vrl`.",
    "desktop": "`any`: its windows are shown even if it cannot notify of changes. Otherwise `--desktop` decides.",
    "secrets": "Names of variables, headers and flags that hold a secret (`true`) or none (`false`).",
    "bundle_id": "The server's name for agents of the published 0.4.2; without it, made of its `name`.",
    "protocol": "`older`: speak a revision of MCP with sessions to it, even if it knows a newer one.",
    "questions_for_agents": "Private questions that agents may answer, not only the owner: `secret`, `url`.",
    "pin": "When a tool changes its definition: `ask` its owner again, `warn`, or `off`. Otherwise `--pin` decides.",
    "start": "`on_call`: its first use starts it; until then it is listed as it was seen last.",
    "idle_stop": "Seconds without use after which it is stopped until it is used again. Otherwise `--idle-stop`.",
    "function": "The function that checks calls: `module:function` or `file.py:function`.",
    "when": "When it checks: before and after each call, or only one of them.",
    "deadline": "Seconds that it has for an answer, at most 600. Without one the call is refused.",
    "sandbox": 'What its process may do, beside the default of `"strict"`; without it, all that you may.',
    "read": "Files and folders that it may read, or `any`.",
    "write": "Files and folders that it may write, or `any`.",
    "connect": "TCP ports that it may connect to, `unix` for Unix sockets; or `any`.",
    "memory": "Resident memory of all its processes, such as `512 MiB`, or `any`. Above it, they are ended.",
    "processes": "How many processes it may have, or `any`. Above it, they are ended.",
    "required": "Do not start it where the kernel cannot enforce these fields.",
    "server_parameters": "How to start it or connect to it.",
    "command": "The program; for an input, the command that prints the value.",
    "args": "Its arguments.",
    "env": "Environment variables, in addition to the few that every server gets (`PATH`, `HOME` …).",
    "cwd": "The folder it runs in.",
    "encoding": "The encoding of its standard input and output.",
    "encoding_error_handler": "How bytes that are not in this encoding are handled.",
    "url": "The URL of the server.",
    "headers": "Sent with every request.",
    "timeout": "For each request but calls of tools; a start has as long, at least 30 s. In seconds if a number.",
    "sse_read_timeout": "How long the stream may be silent; in seconds where it is a number.",
    "terminate_on_close": "Notify the server when the session ends.",
    "auth": "How to sign in to it by OAuth; without it, as its provider wants, with your browser.",
    "grant": "`client_credentials`: the computer signs in for itself, and nobody is asked.",
    "client_id": "The client that is registered with the provider. Without it, the computer registers itself.",
    "client_secret": "Its secret.",
    "token_endpoint_auth_method": "How the secret is sent to the provider.",
    "private_key": "The key, in PEM form, that signs for the client instead of a secret.",
    "signing_algorithm": "The algorithm of that key, such as `ES256`. Otherwise the usual one for its kind.",
    "scopes": "Scopes that are always asked for, beside those that the server names.",
    "issuer": "The only authorization server that gets the secrets of this client.",
    "client_metadata_url": "The https address of a document that describes the client to providers.",
    "redirect_port": "The port of this machine that the browser comes back to. Otherwise a free one.",
    "redirect_uri": "The whole address that the browser comes back to, if the provider knows one.",
    "auto_apply": "The tool runs without asking you.",
    "alias": "The name under which agents see it.",
    "tags": "Words to select tools by.",
    "ret_object_mapper": "Fields of one uniform object, each a JMESPath into the result.",
    "id": "The id in `${input:id}`.",
    "description": "The text of the question.",
    "default": "The value if no other source has one.",
    "password": "The value is a secret: not shown, not stored in files, masked in all output.",
    "options": "The choices: a text, or a label and its value.",
    "label": "The text that is shown.",
    "value": "The value that is used.",
    "host": "Address to listen on.",
    "port": "Port to listen on; 0 takes a free one.",
    "office": "The office that this machine joins.",
}
"""By field: a field has the same meaning in every model. A field without a row is an error."""

_POLICY = """\
`--policy FILE` names a file that is JSON or TOML, like the others. Unknown fields are errors. The
[guide](../guides/policy.md) has examples."""

_POLICY_MEANINGS: dict[str, str] = {
    "default": "What decides if no rule matches; without it, the configuration does.",
    "read_only": "Only tools that are known to change nothing; for a server, the names of such tools.",
    "grants_last": "How long a permanent approval lasts at most, like `8h`.",
    "servers": "At the top, what you say about tools, by server; in rules and budgets, names of servers.",
    "rules": "The first rule that matches decides.",
    "budgets": "A call has to fit all that apply to it.",
    "agents": "Names of agents; `*` stands for any characters.",
    "offices": "Names of offices.",
    "tools": "Names of tools, those of their servers or those that agents see.",
    "name": "How it is called in answers and explanations.",
    "then": "What happens to calls that match.",
    "annotations": "Annotations of the tool that you vouch for, or whose server you trust.",
    "arguments": "A JSON Schema that the arguments have to fit.",
    "every_time": "A permanent approval does not answer the question.",
    "until": "A day or a time, after which the rule matches nothing.",
    "why": "What an agent is told if the rule denies its call.",
    "per": "Counted for each `agent`, `office`, `server` or `tool`.",
    "calls_per_minute": "Calls in any 60 seconds.",
    "running": "Calls at once.",
    "bytes_per_hour": "Bytes of arguments and results; a number, or a size like `10MB`.",
    "trust_hints": "The annotations that the server gives its tools count.",
    "destructive": "Names of tools that destroy something.",
}


def page() -> str:
    return markdown.page(
        "Configuration",
        "## Files of MCP servers",
        _FILES,
        *(_model(each) for each in MODELS),
        "## The file of `up`",
        _UP,
        table(["field", "default", "means"], [_setting(field) for field in dataclasses.fields(SetupOptions)]),
        "## The policy file",
        _POLICY,
        *(_model(each, _POLICY_MEANINGS) for each in (AccessPolicy, PolicyRule, BudgetEntry, ServerStatement)),
        "## Environment",
        table(["variable", "option", "of"], [(code(each[0]), code(each[1]), each[2]) for each in environment()]),
        "`A2C_INPUT_<ID>` is the value of an input: `github-token` is read from `A2C_INPUT_GITHUB_TOKEN`.",
        "## The Server, in Python",
        "`a2c_smcp.server.Settings`, given to `create_app`:",
        _dataclass(Settings),
        "`a2c_smcp.server.Limits`, its `limits`; sizes in bytes, times in seconds:",
        _dataclass(Limits),
    )


def _model(model: type[BaseModel], meanings: dict[str, str] = _MEANINGS) -> str:
    schema = model.model_json_schema()
    required = schema.get("required", [])
    rows = [
        (code(name), words(field), "required" if name in required else _default(field), meanings[name])
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
