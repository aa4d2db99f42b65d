"""The features of MCP, one row each, and whether an agent can use them through an office.

`make reference` prints this table. The tests compare it with the methods that MCP has, with the events of the protocol,
with what a Computer sends and declares, and with the scenarios of MCP's conformance suite.
"""

from __future__ import annotations

from a2c_smcp import mcp_events, published_events, smcp
from a2c_smcp.protocol.connection_features import CONNECTION, NEWEST, OLDER, REVISIONS, SIGN_IN, MCPFeature

__all__ = ["FEATURES", "REVISIONS", "MCPFeature"]

_SINCE_ELICITATION = REVISIONS[2:4]
_SINCE_TASKS = REVISIONS[3:4]

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
        "To the agent for calls with `progress: true`, at most ten a second. With `extend: true` it extends the call.",
        methods=("notifications/progress",),
        events=(mcp_events.TELL_PROGRESS_NOTIFICATION,),
    ),
    MCPFeature(
        "Tools",
        "tasks of 2025-11-25, in both directions",
        "yes",
        "A tool that needs a task is run as one, and followed to its end; the agent sees an ordinary call. A server "
        "may ask with a task, too.",
        methods=("tasks/get", "tasks/list", "tasks/result", "tasks/cancel", "notifications/tasks/status"),
        revisions=_SINCE_TASKS,
        events=(smcp.TOOL_CALL_EVENT,),
        capabilities=("tasks",),
        extension=True,
    ),
    MCPFeature(
        "Tools",
        "the tasks extension (`io.modelcontextprotocol/tasks`)",
        "yes",
        "Followed to its end like a task of 2025-11-25.",
        methods=("tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"),
        revisions=NEWEST,
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
            mcp_events.ANSWER_QUESTION_EVENT,
            mcp_events.GET_QUESTIONS_EVENT,
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
        revisions=NEWEST,
        events=(smcp.TOOL_CALL_EVENT, mcp_events.READ_RESOURCE_EVENT, mcp_events.GET_PROMPT_EVENT),
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
        revisions=OLDER,
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
        revisions=OLDER,
        events=(smcp.TOOL_CALL_EVENT,),
        capabilities=("roots",),
    ),
    MCPFeature(
        "Questions",
        "notice that the roots have changed",
        "no",
        "MCP deprecates roots, and a Computer has none of its own.",
        methods=("notifications/roots/list_changed",),
        revisions=OLDER,
    ),
)

_REST = (
    MCPFeature(
        "Logs",
        "messages of servers",
        "yes",
        "For the owner (`logs SERVER`), and for agents that ask, at most fifty a second.",
        methods=("notifications/message",),
        events=(mcp_events.TELL_LOG_NOTIFICATION, mcp_events.SET_LOG_LEVEL_EVENT),
    ),
    MCPFeature(
        "Logs",
        "levels",
        "yes",
        "The lowest that the owner or an agent asks for. On 2026-07-28 it is said in each request.",
        methods=("logging/setLevel",),
        revisions=OLDER,
        events=(mcp_events.SET_LOG_LEVEL_EVENT,),
    ),
    MCPFeature(
        "Servers",
        "title, version, icons, instructions and capabilities of a server",
        "yes",
        "As the server said them when it was last started.",
        events=(mcp_events.GET_SERVERS_EVENT,),
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
            published_events.GET_RESOURCES_EVENT,
            mcp_events.READ_RESOURCE_EVENT,
            published_events.GET_BLOB_EVENT,
            smcp.GET_DESKTOP_EVENT,
        ),
    ),
    MCPFeature(
        "Resources",
        "templates",
        "yes",
        "As the server lists them.",
        methods=("resources/templates/list",),
        events=(mcp_events.GET_RESOURCE_TEMPLATES_EVENT,),
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
        revisions=OLDER,
        events=(mcp_events.SUBSCRIBE_RESOURCE_EVENT, mcp_events.UNSUBSCRIBE_RESOURCE_EVENT),
    ),
    MCPFeature(
        "Resources",
        "one stream for all subscriptions",
        "yes",
        "A new stream is opened before the old one is closed. One that ends is opened again, which counts as a change.",
        methods=("subscriptions/listen", "notifications/subscriptions/acknowledged"),
        revisions=NEWEST,
        events=(mcp_events.SUBSCRIBE_RESOURCE_EVENT, mcp_events.UNSUBSCRIBE_RESOURCE_EVENT),
    ),
    MCPFeature(
        "Prompts",
        "prompts",
        "yes",
        "Of one server, or of all. A prompt or resource that asks first is answered by the owner, or by an agent that "
        'speaks MCP itself (`questions: "result"`).',
        methods=("prompts/list", "prompts/get", "notifications/prompts/list_changed"),
        events=(
            mcp_events.GET_PROMPTS_EVENT,
            mcp_events.GET_PROMPT_EVENT,
            mcp_events.UPDATE_PROMPTS_NOTIFICATION,
        ),
    ),
    MCPFeature(
        "Completion",
        "completion of arguments",
        "yes",
        "Of prompts and of templates, with the arguments that are known already.",
        methods=("completion/complete",),
        events=(mcp_events.COMPLETE_EVENT,),
    ),
    MCPFeature(
        "Extensions",
        "user interfaces of tools (MCP Apps)",
        "yes",
        "`ui://` resources are read like any other; what a tool says about its own in `_meta` arrives. An agent that "
        "can show them says so in `client_capabilities`.",
        events=(mcp_events.READ_RESOURCE_EVENT, smcp.GET_TOOLS_EVENT),
        extension=True,
    ),
    MCPFeature(
        "Extensions",
        "skills",
        "yes",
        "Those that a server offers as resources below `skill://…`, beside the folders of the owner. Those for which "
        "it names a folder or an archive are left out on purpose.",
        events=(
            published_events.GET_SKILLS_EVENT,
            published_events.GET_SKILL_EVENT,
            published_events.UPDATE_SKILLS_NOTIFICATION,
        ),
        extension=True,
    ),
    MCPFeature(
        "Caching",
        "how long a list or a resource may be kept (`ttlMs`)",
        "yes",
        "Agents get it and keep answers that long, unless a change is announced. A Computer asks the server each time; "
        "its own lists of tools and windows are renewed at a notice, or after that time if the server sends none.",
        revisions=NEWEST,
        events=(published_events.GET_RESOURCES_EVENT, mcp_events.READ_RESOURCE_EVENT, mcp_events.GET_PROMPTS_EVENT),
    ),
)

FEATURES = (*CONNECTION, *SIGN_IN, *_TOOLS, *_ASKING, *_REST, *_READING)
