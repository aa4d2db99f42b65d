"""The requests that agents make of computers: a row for each, with all that the layers must know of it.

The Server (`events`), the codec, the mask, the agent's client, the computer, the MCP host, the registry and the bridge
read these rows; none of them lists the requests again. `OPERATIONS` has all rows; `MCP_OPERATIONS` are those whose
answer is an MCP server's own, and `MCP_LISTS` the lists of MCP servers, page by page (WIRE §9).

To add a request of MCP, such as `resources/stat`:

1. here: the type of its payload, its row, and the row in `MCP_OPERATIONS`. Parameters and results are MCP's own, in
   MCP's spelling. A field without a row in `result` is masked as content.
2. a typed method in `agent/client.py`, and its line in the blocking client (`name = blocking(…)`);
3. a command in `cli/commands/agent.py`. (Work that is long has a module in `cli/agent/`.)

That is all for what MCP servers of computers offer. If a registry offers it too, it needs two more: its answer
(`ANSWERS` in `registry/tool_registry.py`), and the request to an MCP server of its own
(`registry/remote/server_tools.py`). Add a line to `reference/features.py`.

A list is a row in `MCP_LISTS`, the fields of an entry in `computer/content/lists.py`, and, if registries show it, the
class of its entries in `registry/sources.py`. A request of our own is a row, a typed method, and a line where the
computer answers it: in `computer/socketio/client.py`, or in `computer/content/requests.py` if it is about MCP servers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp import device_events, mcp_events, smcp, v04_events
from a2c_smcp.errors import (
    BlobNotAccessible,
    BlobWriteFailed,
    NotFound,
    ServerNotRegistered,
    SkillFileNotAccessible,
    SMCPError,
)
from a2c_smcp.mcp_events import AnswerAction, InputOptions, LogLevel, OpenQuestion, ServerInfo, ServerRequest
from a2c_smcp.protocol.structure import (
    ABOUT_SERVER,
    ANYTHING,
    BLOCK,
    LISTED,
    LISTED_PROMPT,
    NAME,
    RESOURCE,
    TOLD,
    Structure,
    all_of,
)
from a2c_smcp.smcp import AgentCallData

Result: TypeAlias = dict[str, Any]
"""A result as MCP spells it."""
Rule: TypeAlias = Callable[[object], str | None]
"""Takes the value of a field, and returns what is wrong with it."""

MOST_VALUES = 100
"""Values of one completion: as many as MCP allows."""


class Contents(NamedTuple):
    """Where the items of a result are that may be large: in this list, or in a field of each of its entries."""

    name: str
    field: str | None = None

    def of(self, result: Result) -> list[Any]:
        entries = result.get(self.name, [])
        return entries if self.field is None else [each.get(self.field) for each in entries]

    def replaced(self, result: Result, items: list[Any]) -> Result:
        if self.field is None:
            return result | {self.name: items}
        pairs = zip(result.get(self.name, []), items, strict=True)
        return result | {self.name: [{**entry, self.field: item} for entry, item in pairs]}


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """One request of an agent to a computer, and its answer.

    - `event`, `request`: its name on our wire, and the type of its payload. `older`: its name in 003.
    - `options`: the type of further fields that it may have.
    - `result`: the structure of fields of the answer, by which they are masked. `listed`: the one that is a list.
    - `is_masked`: the code that makes the answer masks it, with the words of its MCP server. Any other answer is masked
      as it leaves (`computer/socketio/client.py`), a field without a row as content.
    - `deadline`: the seconds that an agent waits for the answer.
    - `is_newer`: published Servers and computers may not know it. They answer with nothing.
    - `is_call`: it may run a tool, so it is never run twice, can be cancelled, and its errors say whether it has run
      (WIRE §5). `is_sealed`: only the computer can read it.
    - `is_standing`: after its answer, the computer goes on telling the agent about it.
    - `fallback`: the error that agents of the published 0.4 generation expect for one without a code of its own.
    """

    event: str
    request: type[Any]
    older: str | None = None
    options: type[Any] | None = None
    result: Mapping[str, Structure] = field(default_factory=dict)
    is_masked: bool = False
    listed: str = ""
    deadline: float = 30.0
    is_newer: bool = True
    is_call: bool = False
    is_sealed: bool = False
    is_standing: bool = False
    fallback: type[SMCPError] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class MCPOperation(Operation):
    """A request that an MCP server answers. The parameters and the result are MCP's own.

    - `method`, `capability`: what the MCP server is asked, and what it must have declared, except in `undeclared_in`.
    - `params`: the fields that are MCP's parameters, with their rules, which hold for a field of this name in all
      requests; `uri` is the path to a URI among them.
    - `noun`, `key`: what is asked for, and the field that names it, for the owner.
    - `options`: if it has `InputOptions`, the MCP server may ask something before it answers.
    - `at_fault`: the field that is wrong if the MCP server refuses the parameters.
    - `read`: the valid part of a result; `None` if it is none. `contents`: the parts of it that may be large.
    - `is_kept`: agents may keep the answer for as long as it says.
    """

    method: str
    capability: str
    params: Mapping[str, Rule | None]
    read: Callable[[Result], Result | None]
    noun: str
    key: str
    uri: tuple[str, ...] = ()
    at_fault: str = ""
    contents: Contents | None = None
    is_kept: bool = False
    undeclared_in: str = ""
    rules: Mapping[str, Rule] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", {name: rule for name, rule in self.params.items() if rule})

    def mcp_params(self, data: Mapping[str, Any], original: Callable[[str], str]) -> dict[str, Any]:
        """MCP's parameters for a checked request. `original` finds the URI that an agent was shown as another."""
        params = {name: data[name] for name in self.params if data.get(name) is not None}
        return _with_uri(params, self.uri, original) if self.uri else params


@dataclass(frozen=True, eq=False, kw_only=True)
class MCPList(Operation):
    """A list of an MCP server, or of all, that agents get page by page, in the field `listed`.

    - `method`, `mcp_field`: the request for it, and its field in the answer, as MCP has them.
    - `key`: the field that names an entry. `read`: the request by which an entry is read.
    - `asks_for`: fields by which our own agents ask for more than others know.
    - `changed`: the notice that a list has changed.
    """

    method: str
    mcp_field: str
    key: str
    read: MCPOperation
    asks_for: Mapping[str, Any] = field(default_factory=dict)
    changed: str

    @property
    def capability(self) -> str:
        return self.read.capability


def _with_uri(params: Mapping[str, Any], path: tuple[str, ...], original: Callable[[str], str]) -> dict[str, Any]:
    name, *rest = path
    if name not in params:
        return dict(params)
    return {**params, name: _with_uri(params[name], tuple(rest), original) if rest else original(params[name])}


# Requests that the specification does not have


class AnswerQuestionReq(AgentCallData):
    computer: str
    question_id: str
    action: AnswerAction
    content: NotRequired[dict[str, Any] | None]


class AnswerQuestionRet(TypedDict):
    req_id: str


class WithdrawCallReq(AgentCallData):
    """`call` is the `req_id` of the call."""

    computer: str
    call: str


class WithdrawCallRet(TypedDict):
    req_id: str


class GetQuestionsReq(AgentCallData):
    computer: str


class GetQuestionsRet(TypedDict):
    questions: list[OpenQuestion]
    req_id: str


class SetLogLevelReq(AgentCallData):
    computer: str
    level: LogLevel
    mcp_server: NotRequired[str | None]


class SetLogLevelRet(TypedDict):
    req_id: str


class GetServersReq(AgentCallData):
    computer: str


class GetServersRet(TypedDict):
    servers: list[ServerInfo]
    req_id: str


class GetResourceTemplatesReq(ServerRequest):
    cursor: NotRequired[str | None]


class GetResourceTemplatesRet(TypedDict):
    resource_templates: list[dict[str, Any]]
    req_id: str
    next_cursor: NotRequired[str]


class SubscribeResourceReq(ServerRequest):
    """Also the request to end a subscription."""

    uri: str


class SubscribeResourceRet(TypedDict):
    req_id: str


class GetPromptsReq(AgentCallData):
    computer: str
    mcp_server: NotRequired[str | None]
    cursor: NotRequired[str | None]


class GetPromptsRet(TypedDict):
    """MCP's own prompts, each with its `mcp_server`."""

    prompts: list[dict[str, Any]]
    req_id: str
    next_cursor: NotRequired[str]


class ReadResourceReq(ServerRequest):
    uri: str


class GetPromptReq(ServerRequest):
    name: str
    arguments: NotRequired[dict[str, str] | None]


class CompleteReq(ServerRequest):
    """`ref`, `argument` and `context` are MCP's own."""

    ref: dict[str, Any]
    argument: dict[str, Any]
    context: NotRequired[dict[str, Any] | None]


class ReadResourceRet(TypedDict):
    """`contents` are MCP's own."""

    contents: list[dict[str, Any]]
    req_id: str


def completion_params(
    ref: Mapping[str, Any], argument: str, value: str, known: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """MCP's parameters of a completion. `known` are the arguments that are filled in already."""
    params = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
    return params | {"context": {"arguments": dict(known)}} if known else params


# Rules of fields that only these requests have


def _arguments_fault(value: object) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    return None if all(isinstance(each, str) for each in value.values()) else "must be strings"


def _ref_fault(value: object) -> str | None:
    fields = {"ref/prompt": "name", "ref/resource": "uri"}
    is_one = isinstance(value, dict) and isinstance(value.get(fields.get(str(value.get("type")), "")), str)
    return None if is_one else 'must be {"type": "ref/prompt", "name"} or {"type": "ref/resource", "uri"}'


def _argument_fault(value: object) -> str | None:
    is_one = isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("name", "value"))
    return None if is_one else 'must be {"name", "value"}, both strings'


# Results


def _objects_of(name: str) -> Callable[[Result], Result | None]:
    """The result with the objects of this list."""

    def read(result: Result) -> Result | None:
        found = result.get(name)
        return result | {name: [each for each in found if isinstance(each, dict)]} if isinstance(found, list) else None

    return read


def _completion(result: Result) -> Result | None:
    completion = result.get("completion")
    values = completion.get("values") if isinstance(completion, dict) else None
    if not isinstance(completion, dict) or not isinstance(values, list):
        return None
    kept = [each for each in values if isinstance(each, str)][:MOST_VALUES]
    cut = {"hasMore": True} if len(kept) < len(values) else {}
    return result | {"completion": {**completion, "values": kept, **cut}}


# The table. Where the specification names an event or a payload, the row does so in its words.

READ_RESOURCE = MCPOperation(
    event="client:read_resource",
    request=ReadResourceReq,
    is_masked=True,
    options=InputOptions,
    method="resources/read",
    capability="resources",
    params={"uri": None},
    uri=("uri",),
    noun="resource",
    key="uri",
    result={"contents": RESOURCE},
    read=_objects_of("contents"),
    contents=Contents("contents"),
    is_kept=True,
)
GET_PROMPT = MCPOperation(
    event="client:get_prompt",
    request=GetPromptReq,
    is_masked=True,
    options=InputOptions,
    method="prompts/get",
    capability="prompts",
    params={"name": None, "arguments": _arguments_fault},
    noun="prompt",
    key="name",
    at_fault="arguments",
    result={"description": ANYTHING, "messages": Structure({"role": NAME, "content": BLOCK})},
    read=_objects_of("messages"),
    contents=Contents("messages", "content"),
)
COMPLETE = MCPOperation(
    event="client:complete",
    request=CompleteReq,
    is_masked=True,
    method="completion/complete",
    capability="completions",
    params={"ref": _ref_fault, "argument": _argument_fault, "context": None},
    uri=("ref", "uri"),
    noun="completion",
    key="ref",
    at_fault="argument",
    result={"completion": Structure({"values": ANYTHING, **all_of(NAME, "total hasMore")})},
    read=_completion,
    undeclared_in="2024-11-05",
)

MCP_OPERATIONS = (READ_RESOURCE, GET_PROMPT, COMPLETE)

RESOURCES = MCPList(
    event=v04_events.GET_RESOURCES_EVENT,
    request=v04_events.GetResourcesReq,
    is_masked=True,
    method="resources/list",
    mcp_field="resources",
    listed="resources",
    key="uri",
    read=READ_RESOURCE,
    asks_for={"titles": True},
    changed=mcp_events.UPDATE_RESOURCE_LIST_NOTIFICATION,
    result={"resources": LISTED},
    fallback=ServerNotRegistered,
)
TEMPLATES = MCPList(
    event="client:get_resource_templates",
    request=GetResourceTemplatesReq,
    is_masked=True,
    method="resources/templates/list",
    mcp_field="resourceTemplates",
    listed="resource_templates",
    key="uriTemplate",
    read=READ_RESOURCE,
    changed=mcp_events.UPDATE_RESOURCE_LIST_NOTIFICATION,
    result={"resource_templates": LISTED},
)
PROMPTS = MCPList(
    event="client:get_prompts",
    request=GetPromptsReq,
    is_masked=True,
    method="prompts/list",
    mcp_field="prompts",
    listed="prompts",
    key="name",
    read=GET_PROMPT,
    changed=mcp_events.UPDATE_PROMPTS_NOTIFICATION,
    result={"prompts": LISTED_PROMPT},
)

MCP_LISTS = (RESOURCES, TEMPLATES, PROMPTS)

TOOL_CALL = Operation(
    event=smcp.TOOL_CALL_EVENT,
    request=smcp.ToolCallReq,
    is_masked=True,
    options=mcp_events.ToolCallOptions,
    is_newer=False,
    is_call=True,
)
SEALED = Operation(
    event=device_events.SEALED_EVENT, request=device_events.SealedReq, is_masked=True, is_call=True, is_sealed=True
)
GET_DEVICE = Operation(event=device_events.GET_DEVICE_EVENT, request=device_events.GetDeviceReq, is_masked=True)
GET_TOOLS = Operation(
    event=smcp.GET_TOOLS_EVENT, request=smcp.GetToolsReq, is_masked=True, listed="tools", is_newer=False
)
GET_CONFIG = Operation(
    event=smcp.GET_CONFIG_EVENT,
    request=smcp.GetComputerConfigReq,
    is_masked=True,
    older="client:get_mcp_config",
    is_newer=False,
)
GET_DESKTOP = Operation(
    event=smcp.GET_DESKTOP_EVENT, request=smcp.GetDeskTopReq, is_masked=True, listed="desktops", is_newer=False
)
WITHDRAW_CALL = Operation(event="client:withdraw_call", request=WithdrawCallReq)
ANSWER_QUESTION = Operation(event="client:answer_question", request=AnswerQuestionReq)
GET_QUESTIONS = Operation(
    event="client:get_questions", request=GetQuestionsReq, listed="questions", result={"questions": TOLD}
)
SET_LOG_LEVEL = Operation(event="client:set_log_level", request=SetLogLevelReq, is_standing=True)
GET_SERVERS = Operation(
    event="client:get_servers",
    request=GetServersReq,
    is_masked=True,
    listed="servers",
    result={"servers": ABOUT_SERVER},
)
SUBSCRIBE_RESOURCE = Operation(event="client:subscribe_resource", request=SubscribeResourceReq, is_standing=True)
UNSUBSCRIBE_RESOURCE = Operation(event="client:unsubscribe_resource", request=SubscribeResourceReq)
GET_SKILLS = Operation(
    event=v04_events.GET_SKILLS_EVENT,
    request=v04_events.GetSkillsReq,
    is_masked=True,
    listed="skills",
    fallback=NotFound,
)
GET_SKILL = Operation(
    event=v04_events.GET_SKILL_EVENT, request=v04_events.GetSkillReq, is_masked=True, fallback=SkillFileNotAccessible
)
GET_BLOB = Operation(
    event=v04_events.GET_BLOB_EVENT,
    request=v04_events.GetBlobReq,
    is_masked=True,
    deadline=60.0,
    fallback=BlobNotAccessible,
)
PUT_BLOB = Operation(
    event=v04_events.PUT_BLOB_EVENT,
    request=v04_events.PutBlobReq,
    is_masked=True,
    deadline=60.0,
    fallback=BlobWriteFailed,
)

OPERATIONS: tuple[Operation, ...] = (
    *(TOOL_CALL, WITHDRAW_CALL, SEALED, GET_DEVICE, GET_TOOLS, GET_CONFIG, GET_DESKTOP),
    *(ANSWER_QUESTION, GET_QUESTIONS, SET_LOG_LEVEL, GET_SERVERS),
    *(RESOURCES, TEMPLATES, SUBSCRIBE_RESOURCE, UNSUBSCRIBE_RESOURCE, PROMPTS, *MCP_OPERATIONS),
    *(GET_SKILLS, GET_SKILL, GET_BLOB, PUT_BLOB),
)
