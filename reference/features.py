"""The features of MCP, one row each, and whether an agent can use them through an office.

`make reference` prints this table. The tests compare it with the methods that MCP has, with the events of the protocol,
with what a Computer sends and declares, and with the scenarios of MCP's conformance suite.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from a2c_smcp import mcp_events, smcp, v04_events
from a2c_smcp.protocol.operations import (
    ANSWER_QUESTION,
    COMPLETE,
    GET_PROMPT,
    GET_QUESTIONS,
    GET_SERVERS,
    PROMPTS,
    READ_RESOURCE,
    RESOURCES,
    SET_LOG_LEVEL,
    SUBSCRIBE_RESOURCE,
    TEMPLATES,
    UNSUBSCRIBE_RESOURCE,
)

__all__ = ["FEATURES", "REVISIONS", "MCPFeature"]

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

Carried = Literal["yes", "partly", "no"]

_OLDER = REVISIONS[:-1]
_NEWEST = REVISIONS[-1:]
_SINCE_ELICITATION = REVISIONS[2:4]
_SINCE_TASKS = REVISIONS[3:4]


class MCPFeature(NamedTuple):
    """One row.

    `methods` are MCP's requests and notifications, `capabilities` what a Computer declares to servers for it, `events`
    those of this protocol by which an agent uses it, `scenarios` those of the conformance suite that test it. An
    `extension` of MCP is not in the lists of its revisions.
    """

    area: str
    name: str
    carried: Carried
    how: str
    methods: tuple[str, ...] = ()
    revisions: tuple[str, ...] = REVISIONS
    events: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    extension: bool = False


_CONNECTION = (
    MCPFeature(
        "Connection",
        "handshake of older revisions",
        "yes",
        "Done by the Computer, with the newest revision that both know.",
        methods=("initialize", "notifications/initialized"),
        revisions=_OLDER,
        scenarios=("initialize",),
    ),
    MCPFeature(
        "Connection",
        "discovery, metadata in every request",
        "yes",
        "Tried first; a server that does not answer it gets the older handshake.",
        methods=("server/discover",),
        revisions=_NEWEST,
        scenarios=("request-metadata",),
    ),
    MCPFeature(
        "Connection",
        "ping",
        "yes",
        "A Computer answers it, and sends it to a server that has been silent for long.",
        methods=("ping",),
        revisions=_OLDER,
    ),
    MCPFeature(
        "Connection",
        "stdio, streamable HTTP, HTTP with SSE",
        "yes",
        "`type` in the configuration. A stream that is cut is taken up where it ended.",
        scenarios=("sse-retry",),
    ),
    MCPFeature(
        "Connection",
        "HTTP headers for methods, names and marked parameters",
        "yes",
        "Sent by the Computer. A tool that marks its parameters wrongly is left out, with a warning. "
        "`null` for a marked parameter that is not required is the same as no value.",
        revisions=_NEWEST,
        scenarios=("http-standard-headers", "http-custom-headers", "http-invalid-tool-headers"),
    ),
)

_SIGN_IN = (
    MCPFeature(
        "Sign-in",
        "OAuth 2.1 with PKCE: discovery of the resource and its authorization server",
        "yes",
        "On the Computer: by browser, or by pasting the redirect. Tokens never leave the machine.",
        scenarios=(
            "auth/metadata-default",
            "auth/metadata-var1",
            "auth/metadata-var2",
            "auth/metadata-var3",
            "auth/resource-mismatch",
            "auth/authorization-server-migration",
            "auth/2025-03-26-oauth-metadata-backcompat",
            "auth/2025-03-26-oauth-endpoint-fallback",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "client metadata documents, dynamic registration, registered clients",
        "yes",
        "`auth` in the configuration of the server: `client_metadata_url`, nothing, or `client_id`.",
        scenarios=(
            "auth/basic-cimd",
            "auth/pre-registration",
            "auth/token-endpoint-auth-basic",
            "auth/token-endpoint-auth-post",
            "auth/token-endpoint-auth-none",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "scopes, and further ones when a tool needs them",
        "yes",
        "The call waits for the sign-in if the owner is there; otherwise its result has the code 4007.",
        scenarios=(
            "auth/scope-from-www-authenticate",
            "auth/scope-from-scopes-supported",
            "auth/scope-omitted-when-undefined",
            "auth/scope-step-up",
            "auth/scope-retry-limit",
            "auth/offline-access-scope",
            "auth/offline-access-not-supported",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "check of the issuer",
        "yes",
        "A redirect that names another issuer, or metadata of another, ends the sign-in.",
        revisions=_NEWEST,
        scenarios=(
            "auth/iss-supported",
            "auth/iss-not-advertised",
            "auth/iss-supported-missing",
            "auth/iss-wrong-issuer",
            "auth/iss-unexpected",
            "auth/iss-normalized",
            "auth/metadata-issuer-mismatch",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "client credentials: a secret, or a signed assertion",
        "yes",
        '`"grant": "client_credentials"` in `auth`.',
        scenarios=("auth/client-credentials-basic", "auth/client-credentials-jwt"),
        extension=True,
    ),
    MCPFeature(
        "Sign-in",
        "DPoP, enterprise-managed authorization, workload identity",
        "no",
        "Extensions that the MCP SDK does not have, or that need an identity provider of an organisation.",
        scenarios=(
            "auth/dpop",
            "auth/dpop-nonce",
            "auth/enterprise-managed-authorization",
            "auth/wif-jwt-bearer",
        ),
        extension=True,
    ),
)

_TOOLS = (
    MCPFeature(
        "Tools",
        "list, and notices of its changes",
        "yes",
        "With title, icons, annotations and `_meta` in `meta`. Schemas arrive unchanged; a reference to another "
        "document is never fetched.",
        methods=("tools/list", "notifications/tools/list_changed"),
        events=(smcp.GET_TOOLS_EVENT, smcp.UPDATE_TOOL_LIST_NOTIFICATION),
        scenarios=("json-schema-ref-no-deref", "json-schema-2020-12-preservation"),
    ),
    MCPFeature(
        "Tools",
        "calls",
        "yes",
        "Results as the server sent them, with `_meta`; the agent's `_meta` reaches the server. JSON-RPC errors keep "
        "code and data in `_meta.a2c_mcp_error`.",
        methods=("tools/call",),
        events=(smcp.TOOL_CALL_EVENT,),
        scenarios=("tools_call",),
    ),
    MCPFeature(
        "Tools",
        "cancelling",
        "yes",
        "In both directions: a cancelled call is cancelled at the server, a server may withdraw its question.",
        methods=("notifications/cancelled",),
        events=(smcp.CANCEL_TOOL_CALL_EVENT,),
    ),
    MCPFeature(
        "Tools",
        "progress",
        "yes",
        "To the agent for calls with `progress: true`, at most ten a second. With `extend: true` it extends the call. "
        "While a call waits, MCP clients get a report that says for whom.",
        methods=("notifications/progress",),
        events=(mcp_events.TELL_PROGRESS_NOTIFICATION, mcp_events.TELL_STATE_NOTIFICATION),
    ),
    MCPFeature(
        "Tools",
        "tasks of 2025-11-25",
        "yes",
        "A tool that needs a task is run as one, and followed to its end; the agent sees an ordinary call. A question "
        "that a server wants to ask with a task is answered without one.",
        methods=("tasks/get", "tasks/result", "tasks/cancel", "notifications/tasks/status"),
        revisions=_SINCE_TASKS,
        events=(smcp.TOOL_CALL_EVENT,),
        extension=True,
    ),
    MCPFeature(
        "Tools",
        "the tasks extension (`io.modelcontextprotocol/tasks`)",
        "yes",
        "Followed to its end like a task of 2025-11-25.",
        methods=("tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"),
        revisions=_NEWEST,
        events=(smcp.TOOL_CALL_EVENT,),
        capabilities=("extensions.io.modelcontextprotocol/tasks",),
        extension=True,
    ),
)

_ASKING = (
    MCPFeature(
        "Questions",
        "elicitation: forms and URLs",
        "yes",
        "Answered by the owner, by the agent (`questions: true`), or the tool hears that nobody can answer. "
        "Defaults are filled in, content is checked.",
        methods=("elicitation/create",),
        revisions=_SINCE_ELICITATION,
        events=(
            mcp_events.TELL_QUESTION_NOTIFICATION,
            mcp_events.TELL_QUESTION_ENDED_NOTIFICATION,
            ANSWER_QUESTION.event,
            GET_QUESTIONS.event,
        ),
        capabilities=("elicitation.form", "elicitation.url"),
        scenarios=("elicitation-sep1034-client-defaults",),
    ),
    MCPFeature(
        "Questions",
        "URLs that a call needs first (error -32042), and the notice that one was visited",
        "yes",
        "A URL is asked like any other; when all were visited, the call is sent again.",
        methods=("notifications/elicitation/complete",),
        revisions=_SINCE_TASKS,
    ),
    MCPFeature(
        "Questions",
        "requests that return `InputRequiredResult`",
        "yes",
        "Answered like a question of older revisions, or handed to an agent that speaks MCP itself "
        '(`questions: "result"`), with its request state.',
        revisions=_NEWEST,
        events=(smcp.TOOL_CALL_EVENT, READ_RESOURCE.event, GET_PROMPT.event),
        capabilities=("elicitation",),
        scenarios=("sep-2322-client-request-state",),
    ),
    MCPFeature(
        "Questions",
        "sampling",
        "partly",
        'Only for calls with `questions: "result"` that declare it in `client_capabilities`: the agent asks its model. '
        "MCP deprecates it.",
        methods=("sampling/createMessage",),
        revisions=_OLDER,
        events=(smcp.TOOL_CALL_EVENT,),
        capabilities=("sampling",),
    ),
    MCPFeature(
        "Questions",
        "roots",
        "partly",
        'Only for calls with `questions: "result"` that declare it in `client_capabilities`; otherwise the list is '
        "empty. MCP deprecates it.",
        methods=("roots/list",),
        revisions=_OLDER,
        events=(smcp.TOOL_CALL_EVENT,),
        capabilities=("roots",),
    ),
    MCPFeature(
        "Questions",
        "notice that the roots have changed",
        "no",
        "MCP deprecates roots, and a Computer has none of its own.",
        methods=("notifications/roots/list_changed",),
        revisions=_OLDER,
    ),
)

_REST = (
    MCPFeature(
        "Logs",
        "messages of servers",
        "yes",
        "For the owner (`logs SERVER`), and for agents that ask, at most fifty a second.",
        methods=("notifications/message",),
        events=(mcp_events.TELL_LOG_NOTIFICATION, SET_LOG_LEVEL.event),
    ),
    MCPFeature(
        "Logs",
        "levels",
        "yes",
        "The lowest that the owner or an agent asks for. On 2026-07-28 it is said in each request.",
        methods=("logging/setLevel",),
        revisions=_OLDER,
        events=(SET_LOG_LEVEL.event,),
    ),
    MCPFeature(
        "Servers",
        "title, version, icons, instructions and capabilities of a server",
        "yes",
        "As the server said them when it was last started.",
        events=(GET_SERVERS.event,),
    ),
)

_READING = (
    MCPFeature(
        "Resources",
        "list and read, of any scheme",
        "yes",
        "Page by page, with MCP's cursors; the agent follows them. Large binary contents go by the side band. Those "
        "whose URI begins with `window://` are also windows of the desktop.",
        methods=("resources/list", "resources/read"),
        events=(
            RESOURCES.event,
            READ_RESOURCE.event,
            v04_events.GET_BLOB_EVENT,
            smcp.GET_DESKTOP_EVENT,
        ),
    ),
    MCPFeature(
        "Resources",
        "templates",
        "yes",
        "As the server lists them.",
        methods=("resources/templates/list",),
        events=(TEMPLATES.event,),
    ),
    MCPFeature(
        "Resources",
        "notices of changes",
        "yes",
        "Of lists to all agents, with the name of the server; of a resource to the agents that have subscribed to it.",
        methods=("notifications/resources/list_changed", "notifications/resources/updated"),
        events=(
            mcp_events.UPDATE_RESOURCE_LIST_NOTIFICATION,
            mcp_events.TELL_RESOURCE_NOTIFICATION,
            smcp.UPDATE_DESKTOP_NOTIFICATION,
        ),
    ),
    MCPFeature(
        "Resources",
        "subscriptions of older revisions",
        "yes",
        "To windows, and to what agents subscribe to. They survive a restart of the server, which counts as a change.",
        methods=("resources/subscribe", "resources/unsubscribe"),
        revisions=_OLDER,
        events=(SUBSCRIBE_RESOURCE.event, UNSUBSCRIBE_RESOURCE.event),
    ),
    MCPFeature(
        "Resources",
        "one stream for all subscriptions",
        "yes",
        "A new stream is opened before the old one is closed. One that ends is opened again, which counts as a change.",
        methods=("subscriptions/listen", "notifications/subscriptions/acknowledged"),
        revisions=_NEWEST,
        events=(SUBSCRIBE_RESOURCE.event, UNSUBSCRIBE_RESOURCE.event),
    ),
    MCPFeature(
        "Prompts",
        "prompts",
        "yes",
        "Of one server, or of all. A prompt or resource that asks first is answered by the owner, or by an agent that "
        'speaks MCP itself (`questions: "result"`).',
        methods=("prompts/list", "prompts/get", "notifications/prompts/list_changed"),
        events=(
            PROMPTS.event,
            GET_PROMPT.event,
            mcp_events.UPDATE_PROMPTS_NOTIFICATION,
        ),
    ),
    MCPFeature(
        "Completion",
        "completion of arguments",
        "yes",
        "Of prompts and of templates, with the arguments that are known already.",
        methods=("completion/complete",),
        events=(COMPLETE.event,),
    ),
    MCPFeature(
        "Extensions",
        "user interfaces of tools (MCP Apps, `io.modelcontextprotocol/ui`)",
        "yes",
        "`ui://` resources are read like any other; what a tool says about its own in `_meta` arrives. Lists are asked "
        "for as by a client that shows apps; of a call that has `client_capabilities`, the server hears what these "
        "say. Through a bridge, pages and calls of apps are those of their own computer.",
        events=(READ_RESOURCE.event, smcp.GET_TOOLS_EVENT),
        capabilities=("extensions.io.modelcontextprotocol/ui",),
        extension=True,
    ),
    MCPFeature(
        "Extensions",
        "skills",
        "yes",
        "Those of servers with the extension `io.modelcontextprotocol/skills` (SEP-2640): listed with `skills/list`, "
        "each file read when it is needed and checked against its SHA-256; those without digests (`dynamic`) are left "
        "out. Of older servers, those that they offer as resources below `skill://…`; those for which such a server "
        "names a folder or an archive are left out on purpose. The owner's folders are skills, too. A bridge answers "
        "`skills/list` and `skills/get` for all computers of its office. `resources/directory/read`, which is "
        "optional, is neither used nor offered.",
        events=(
            v04_events.GET_SKILLS_EVENT,
            v04_events.GET_SKILL_EVENT,
            v04_events.UPDATE_SKILLS_NOTIFICATION,
        ),
        extension=True,
    ),
    MCPFeature(
        "Caching",
        "how long a list or a resource may be kept (`ttlMs`)",
        "yes",
        "Agents get it and keep answers that long, unless a change is announced. A Computer asks the server each time; "
        "its own lists of tools and windows are renewed at a notice, or after that time if the server sends none.",
        revisions=_NEWEST,
        events=(RESOURCES.event, READ_RESOURCE.event, PROMPTS.event),
    ),
)

FEATURES = (*_CONNECTION, *_SIGN_IN, *_TOOLS, *_ASKING, *_REST, *_READING)
