"""Configurations of MCP servers (000), read from their newer and older shapes.

A value that is not text, such as a timeout, may still be a `${input:…}` placeholder: the model then holds the default
and remembers the placeholder for `source` and `to_wire`. To connect, render `source(config)` and parse it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, ValidationError

from a2c_smcp import smcp
from a2c_smcp.mcp_host.config.fields import (
    WRITTEN_OUT,
    BundleId,
    Duration,
    Encoding,
    FieldContent,
    Flag,
    HeaderValue,
    NonEmpty,
    Seconds,
    ServerName,
    ToolAlias,
    Url,
    has_placeholder,
)
from a2c_smcp.mcp_host.config.inputs import (
    INPUT_CONTENTS,
    MISSING,
    CommandInput,
    Fault,
    FieldPath,
    MCPServerInput,
    PickOption,
    PickStringInput,
    PromptStringInput,
    StrictModel,
    closest_name,
    config_error,
    contents_of,
    faults_of,
    input_to_wire,
    meaningless_fields,
    parse_input,
    unknown_fields,
)
from a2c_smcp.mcp_host.config.sandbox import SandboxField, SandboxSettings
from a2c_smcp.mcp_host.config.sign_in import SIGN_IN_CONTENTS, SignInSettings

__all__ = [
    "INPUT_CONTENTS",
    "PARAMETER_CONTENTS",
    "SERVER_CONTENTS",
    "SIGN_IN_CONTENTS",
    "TOOL_META_CONTENTS",
    "BaseServerConfig",
    "CommandInput",
    "FieldContent",
    "MCPServerConfig",
    "MCPServerInput",
    "PickOption",
    "PickStringInput",
    "PromptStringInput",
    "SSEConfig",
    "SSEParameters",
    "SandboxSettings",
    "SignInSettings",
    "StdioConfig",
    "StdioParameters",
    "StreamableConfig",
    "StreamableParameters",
    "ToolMeta",
    "input_to_wire",
    "meaningless_fields",
    "parse_input",
    "parse_server",
    "source",
    "to_wire",
    "unknown_fields",
]


class ToolMeta(StrictModel):
    """The owner's settings for a tool. The order of the fields is that of 000's scenario 2."""

    auto_apply: Annotated[Flag | None, FieldContent.SETTING] = None
    alias: Annotated[ToolAlias | None, FieldContent.NAME] = None
    tags: Annotated[list[str] | None, FieldContent.NAME] = None
    ret_object_mapper: Annotated[dict[str, Any] | None, FieldContent.NAMES] = None


class BaseServerConfig(StrictModel):
    """The fields of every MCP server.

    `desktop="any"`: its windows take part unsubscribed; without it the policy decides. `secrets`: which names of
    variables, headers and flags hold a secret, and which do not, where their values are judged wrongly.
    `questions_for_agents`: the private questions that agents may see and answer; by default the owner alone may.
    `protocol="older"`: speak a revision of MCP with sessions to it (up to 2025-11-25), even if it knows a newer one.
    `bundle_id`: what agents of the published 0.3 and 0.4 generations call the server; without it, the name says.
    `pin`: what happens when a tool changes its definition; without it, those that ask their owner ask again.
    `start="on_call"`: it is started by its first use, and listed as it was seen last. `idle_stop`: the seconds without
    use after which it is stopped until it is used again.
    """

    name: Annotated[ServerName, FieldContent.NAME]
    bundle_id: Annotated[BundleId | None, FieldContent.NAME] = None
    disabled: Annotated[Flag, FieldContent.SETTING] = False
    forbidden_tools: Annotated[list[str], FieldContent.NAME] = Field(default_factory=list)
    tool_meta: Annotated[dict[str, ToolMeta], FieldContent.NAMES] = Field(default_factory=dict)
    default_tool_meta: Annotated[ToolMeta | None, FieldContent.NAMES] = None
    vrl: Annotated[str | None, FieldContent.PROSE] = None
    desktop: Annotated[Literal["subscribed", "any"] | None, FieldContent.SETTING] = None
    protocol: Annotated[Literal["newest", "older"] | None, FieldContent.SETTING] = None
    secrets: Annotated[dict[str, Flag], FieldContent.NAMES] = Field(default_factory=dict)
    questions_for_agents: Annotated[list[Literal["secret", "url"]], FieldContent.SETTING] = Field(default_factory=list)
    pin: Annotated[Literal["off", "warn", "ask"] | None, FieldContent.SETTING] = None
    start: Annotated[Literal["always", "on_call"], FieldContent.SETTING] = "always"
    idle_stop: Annotated[Seconds | None, FieldContent.SETTING] = None

    _waiting: dict[FieldPath, str] = PrivateAttr(default_factory=dict)


class StdioParameters(StrictModel):
    command: Annotated[NonEmpty, FieldContent.COMMAND]
    args: Annotated[list[str], FieldContent.ARGUMENTS] = Field(default_factory=list)
    env: Annotated[dict[str, str] | None, FieldContent.PAIRS] = None
    cwd: Annotated[str | None, FieldContent.PATH] = None
    encoding: Annotated[Encoding, FieldContent.SETTING] = "utf-8"
    encoding_error_handler: Annotated[Literal["strict", "ignore", "replace"], FieldContent.SETTING] = "strict"


class StdioConfig(BaseServerConfig):
    """A program on this machine that speaks MCP on its standard input and output."""

    type: Annotated[Literal["stdio"], FieldContent.SETTING] = "stdio"
    server_parameters: StdioParameters
    sandbox: Annotated[SandboxField, FieldContent.PATH] = None


class StreamableParameters(StrictModel):
    url: Annotated[Url, FieldContent.URL]
    headers: Annotated[dict[str, HeaderValue] | None, FieldContent.PAIRS] = None
    timeout: Annotated[Duration, FieldContent.SETTING] = timedelta(seconds=30)
    sse_read_timeout: Annotated[Duration, FieldContent.SETTING] = timedelta(minutes=5)
    terminate_on_close: Annotated[Flag, FieldContent.SETTING] = True
    auth: Annotated[SignInSettings | None, FieldContent.SIGN_IN] = None

    @property
    def timeout_in_seconds(self) -> float:
        return self.timeout.total_seconds()


class StreamableConfig(BaseServerConfig):
    """An MCP server that is reached over Streamable HTTP."""

    type: Annotated[Literal["streamable"], FieldContent.SETTING] = "streamable"
    server_parameters: StreamableParameters


class SSEParameters(StrictModel):
    url: Annotated[Url, FieldContent.URL]
    headers: Annotated[dict[str, HeaderValue] | None, FieldContent.PAIRS] = None
    timeout: Annotated[Seconds, FieldContent.SETTING] = 5.0
    sse_read_timeout: Annotated[Seconds, FieldContent.SETTING] = 300.0
    auth: Annotated[SignInSettings | None, FieldContent.SIGN_IN] = None

    @property
    def timeout_in_seconds(self) -> float:
        return self.timeout


class SSEConfig(BaseServerConfig):
    """An MCP server that is reached over the older HTTP transport, with server-sent events."""

    type: Annotated[Literal["sse"], FieldContent.SETTING] = "sse"
    server_parameters: SSEParameters


MCPServerConfig: TypeAlias = Annotated[StdioConfig | StreamableConfig | SSEConfig, Field(discriminator="type")]

_KINDS: dict[str, type[StdioConfig | StreamableConfig | SSEConfig]] = {
    "stdio": StdioConfig,
    "streamable": StreamableConfig,
    "sse": SSEConfig,
}
_PARAMETERS: dict[str, type[StrictModel]] = {
    "stdio": StdioParameters,
    "streamable": StreamableParameters,
    "sse": SSEParameters,
}

SERVER_CONTENTS = contents_of(*_KINDS.values())
PARAMETER_CONTENTS = contents_of(*_PARAMETERS.values())
TOOL_META_CONTENTS = contents_of(ToolMeta)
"""The contents of the fields of servers, of their parameters and of ToolMeta, by name."""

_TYPE_FIELDS = ("command", "url", "type", "server_parameters")
"""Fields that show the type of a server."""
_BUNDLE_ID: FieldPath = ("bundle_id",)  # identifies the server before inputs are known
_OTHER_NAMES = dict.fromkeys(("http", "streamable-http", "streamable_http", "streamableHttp"), "streamable")
_WIRE: dict[str, tuple[Any, Any]] = {
    "stdio": (smcp.MCPServerStdioConfig, smcp.MCPServerStdioParameters),
    "streamable": (smcp.MCPServerStreamableHttpConfig, smcp.MCPServerStreamableHttpParameters),
    "sse": (smcp.MCPSSEConfig, smcp.MCPSSEParameters),
}
_Config = TypeVar("_Config", bound=BaseServerConfig)


def parse_server(data: object, name: str | None = None) -> MCPServerConfig:
    """Return the model of a server in 000's JSON, in 003's flat shape, or without a type. `name` replaces its own.

    Raises `ConfigError`, which names the server and the fields and quotes no value.
    """
    if not isinstance(data, Mapping):
        raise config_error(_server(name), [((), "must be an object")])
    fields = {**data, **({} if name is None else {"name": name})}
    about = _server(fields.get("name"))
    flat = "server_parameters" not in fields
    kind = _kind(fields.get("type"), fields if flat else fields["server_parameters"])
    if kind not in _KINDS:
        raise config_error(about, _faults_of_type(fields))
    if flat:
        known = _PARAMETERS[kind].model_fields
        fields["server_parameters"] = {key: fields.pop(key) for key in list(fields) if key in known}
    elif "auth" in fields and "auth" in _PARAMETERS[kind].model_fields:
        fields["server_parameters"] = {"auth": fields.pop("auth"), **fields["server_parameters"]}
    _take_sandbox(fields, kind, about)
    return _validated(_KINDS[kind], {**fields, "type": kind}, about, flat=flat)


def _faults_of_type(fields: Mapping[str, Any]) -> list[Fault]:
    """Say why a server has no known type: another one is named, or a field that would show it is misspelt."""
    if "type" in fields:
        return [(("type",), f"must be one of {', '.join(_KINDS)}")]
    meant = {name: closest_name(name, _TYPE_FIELDS) for name in fields}
    misspelt: list[Fault] = [
        ((name,), f"there is no such field, did you mean {near!r}?") for name, near in meant.items() if near
    ]
    return misspelt or [(("type",), f"must be one of {', '.join(_KINDS)}, or give a command or a url instead")]


def _take_sandbox(fields: dict[str, Any], kind: str, about: str) -> None:
    """Move a sandbox that is among the parameters. Where it would have no effect, it is an error."""
    parameters = fields["server_parameters"]
    if isinstance(parameters, Mapping) and "sandbox" in parameters:
        rest = {key: value for key, value in parameters.items() if key != "sandbox"}
        fields["server_parameters"] = rest
        fields.setdefault("sandbox", parameters["sandbox"])
    if kind != "stdio" and fields.get("sandbox") is not None:
        raise config_error(about, [(("sandbox",), "only a server over stdio can be in a sandbox")])


def source(config: BaseServerConfig) -> dict[str, Any]:
    """Return the configuration as JSON that `parse_server` reads: all fields, unknown ones and placeholders too."""
    data = config.model_dump(mode="json")
    for path, placeholder in config._waiting.items():
        holder = _at(data, path[:-1])
        assert isinstance(holder, dict)
        holder[path[-1]] = placeholder
    return data


def to_wire(config: MCPServerConfig) -> smcp.MCPServerConfig:
    """Return the configuration in the wire form of 000, without other fields. Its secrets are still in it."""
    shape, parameters = _WIRE[config.type]
    wire = _only(shape, source(config))
    wire["server_parameters"] = _only(parameters, wire["server_parameters"])
    wire["default_tool_meta"] = _only(smcp.ToolMeta, wire["default_tool_meta"])
    if isinstance(wire["tool_meta"], dict):
        wire["tool_meta"] = {tool: _only(smcp.ToolMeta, meta) for tool, meta in wire["tool_meta"].items()}
    return cast("smcp.MCPServerConfig", wire)


def _kind(claimed: object, parameters: object) -> str:
    if isinstance(claimed, str):
        return _OTHER_NAMES.get(claimed, claimed)
    if claimed is not None or not isinstance(parameters, Mapping):
        return ""
    if "command" in parameters:
        return "stdio"
    if "url" in parameters:
        return "sse" if _path_of(parameters["url"]).endswith("/sse") else "streamable"
    return ""


def _path_of(url: object) -> str:
    try:
        return urlsplit(url).path.rstrip("/") if isinstance(url, str) else ""
    except ValueError:
        return ""


def _validated(model: type[_Config], data: dict[str, Any], about: str, *, flat: bool) -> _Config:
    """Return the model of this data. Where a field is no text, a placeholder is kept aside and the default is used."""
    waiting: dict[FieldPath, str] = {}
    while True:
        try:
            config = model.model_validate(_without(data, waiting))
        except ValidationError as error:
            faults = faults_of(error)
            placeholders = {
                path: value for path, _ in faults if path != _BUNDLE_ID and has_placeholder(value := _at(data, path))
            }
            if placeholders.keys() <= waiting.keys():
                named = []
                for path, fault in faults:
                    shown = path[1:] if flat and len(path) > 1 and path[0] == "server_parameters" else path
                    named.append((shown, WRITTEN_OUT if path in waiting else _missed(data, path, fault)))
                raise config_error(about, named) from None
            waiting |= placeholders
        else:
            config._waiting.update(waiting)
            return config


def _missed(data: Mapping[str, Any], path: FieldPath, fault: str) -> str:
    """Return the fault, and for a missing field the name that may be a misspelling of it."""
    beside = {*data, *(holder if isinstance(holder := _at(data, path[:-1]), Mapping) else ())}
    near = closest_name(str(path[-1]), beside - {str(path[-1])}) if fault == MISSING else None
    return f"{fault}, or misspelt as {near!r}" if near else fault


def _without(data: dict[Any, Any], paths: Mapping[FieldPath, str]) -> dict[Any, Any]:
    """Return a copy of the data without these fields."""
    result = dict(data)
    for path in paths:
        holder = result
        for step in path[:-1]:
            holder[step] = dict(holder[step])
            holder = holder[step]
        del holder[path[-1]]
    return result


def _at(data: object, path: FieldPath) -> object:
    for step in path:
        data = data.get(step) if isinstance(data, Mapping) else None
    return data


def _only(shape: Any, data: Any) -> Any:
    return {key: data[key] for key in shape.__annotations__ if key in data} if isinstance(data, dict) else data


def _server(name: object) -> str:
    return f"server {name!r}" if isinstance(name, str) else "server"
