"""What the specification and the wire contract ask of the Server, a sentence for each row.

`test_requirements.py` checks both ways: each row has a test that names it, each test over the wire names its rows.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["REQUIREMENTS", "Requirement"]


class Requirement(NamedTuple):
    """Where it is written, and what it says in our words."""

    source: str
    text: str


_TABLE: dict[str, dict[str, str]] = {
    "000": {
        "vocabulary": "Every structure and constant exists with its name and optionality.",
    },
    "002 client events": {
        "002-tool_call": "client:tool_call is routed to its computer, whose result comes back.",
        "002-get_config": "client:get_config is routed to its computer.",
        "002-get_tools": "client:get_tools is routed to its computer.",
        "002-get_desktop": "client:get_desktop is routed to its computer.",
    },
    "002 server events": {
        "002-join_office": "server:join_office acks (true, null) or (false, reason).",
        "002-leave_office": "server:leave_office gives up the seat.",
        "002-update_config": "server:update_config is broadcast as notify:update_config.",
        "002-update_tool_list": "server:update_tool_list is broadcast as notify:update_tool_list.",
        "002-update_desktop": "server:update_desktop is broadcast as notify:update_desktop.",
        "002-tool_call_cancel": "server:tool_call_cancel is acked empty and reaches the computer.",
        "002-list_room": "server:list_room lists everybody in the office.",
    },
    "002 notify events": {
        "002-enter_office": "notify:enter_office tells the others who came in.",
        "002-leave_office-notice": "notify:leave_office tells the others who left.",
        "002-tool_call_cancel-notice": "notify:tool_call_cancel carries what the agent sent.",
    },
    "004 window URIs": {
        "window-uri": "window:// URIs follow every rule on scheme, host, path, priority and fullscreen.",
    },
    "WIRE §1 transport": {
        "transports": "Polling, polling to websocket, and websocket-only clients all work, in any pair.",
        "ack-arguments": "A tuple travels as several ack arguments, any other answer as one.",
        "interop-0.1.2": "The published 0.1.2 package works as agent and as computer.",
        "interop-0.4.2": "The published 0.4.2 package works as agent and as computer.",
        "interop-javascript": "The JavaScript client works.",
        "version": "a2c_version is optional, any 0.x is accepted and shown in list_room.",
        "version-http": "A malformed or pinned-out version is HTTP 400 with the error as JSON.",
        "auth-credentials": "Credentials come from CONNECT auth, Bearer, x-api-key or access_token.",
        "cors": "There is no cross-origin access unless it is allowed.",
    },
    "WIRE §2 older names": {
        "older-names": "003's events and robot_id are accepted; who uses them also hears older notices.",
    },
    "WIRE §3 always an ack": {
        "always-an-ack": "Every event that asks for an ack gets one at once, refusals included.",
        "error-shape": "Failures carry the nested error and its flat copy; for tool calls also a valid MCP result.",
        "error-codes": "Each failure has the code of the table.",
        "bad-payload": "A payload that does not validate is 400 and names the field.",
        "malformed-frames": "Frames that are no sound packets are answered where they can be, and harm nobody.",
        "auth-refused": "A refused handshake is CONNECT_ERROR with message and data.code 401.",
        "only-smcp": "Only /smcp can be connected to.",
        "event-names": "Event names are exact; reserved names and notify:* from a client are refused.",
        "wrong-role": "What belongs to the other role is 403.",
        "not-in-office": "Everything but joining needs an office: 403.",
        "strict-json": "JSON is strict, and carries integers and strings of any kind.",
    },
    "WIRE §4 offices": {
        "office-one-agent": "One agent to an office; the second is refused in 003's words.",
        "office-several": "An agent may sit in several offices; office_id picks one.",
        "ambiguous-computer": "The same name in two of them without office_id is 400 with both offices.",
        "office-isolation": "Nothing outside the sender's own offices can be seen, called, listed or disturbed.",
        "office-switch": "A computer sits in one office; joining another leaves the first, or stays whole if refused.",
        "office-names": "Computer names are unique in their office, and nowhere else.",
        "office-role": "A connection never changes its role.",
        "office-rename": "Another name in the same office is told as leave and enter.",
        "office-idempotent": "Joining again changes nothing and is told to nobody.",
        "office-refused-unchanged": "A refused join changes nothing anywhere and leaves nothing subscribed.",
        "notices-to-others": "Notices go to the others, not to their originator.",
        "office-leave-on-disconnect": "A disconnect is a leave: at once without an instance, after the grace with one.",
        "office-resume": "The same client with the same instance takes over all its seats without notices.",
        "instance-secret": "The instance itself appears nowhere.",
        "office-leave-foreign": "Leaving an office one is not in is 403.",
        "list-room-own": "list_room is for the agent that sits there, 403 for anybody else.",
        "claims-name": "Nobody speaks under another's name: 403.",
        "routing-unknown": "client:<x> and server:update_<x> are carried, known or not.",
        "nothing-stripped": "No field of a payload or an answer is lost or changed.",
    },
    "WIRE §5 calls": {
        "calls-timeout-field": "timeout is whole seconds from 1 to the maximum.",
        "calls-deadline": "The Server answers a second after the timeout, and within its own where there is none.",
        "calls-duplicates": "A tool call that comes again joins the first; another call under its req_id is 400.",
        "calls-kept-answer": "An answer whose agent was gone is kept for its return.",
        "calls-cancel": "A cancel is told in the office of its call; the Server answers for a silent computer.",
        "calls-computer-left": "Calls in flight fail with 404 when their computer leaves.",
        "calls-resume": "Calls wait for a computer that is away, and go on when either side is back.",
        "calls-one-hurts-no-other": "One call, slow, stuck or broken, never hurts another.",
    },
    "WIRE §6 limits": {
        "names-limits": "Names have 1 to 128 characters, no control characters, no white space at either end.",
        "limit-message": "A message over the limit is 413, counted as encoded, and the connection lives on.",
        "limit-calls": "Calls in flight are limited per agent and per computer: 429.",
        "limit-updates": "Known updates are merged to 20 a second, newer ones refused above 50.",
        "limit-unread": "What a member does not read is bounded; its neighbours never wait.",
        "limit-polling-batch": "A polling response holds at most 16 packets; a request may hold more.",
        "limit-handshake": "A handshake that does not finish is closed.",
        "limit-defaults": "Every limit has the default of the contract.",
        "half-open": "A half-open connection is noticed within 20 seconds.",
        "rooms-prefixed": "No client-chosen string is ever a room by itself.",
    },
    "Who may come in": {
        "auth-keys": "API keys, one or many, from options or a file that can be read again.",
        "auth-jwt": "JSON Web Tokens with an algorithm allow-list, issuer, audience and times.",
        "auth-fails-closed": "Whatever is not a clear yes in time is a no.",
        "auth-scope": "A principal has the offices, roles and names it was given.",
        "auth-expiry": "A connection whose token expires or is revoked is closed.",
        "trusted-hosts": "Without authentication the Server is not reached under a foreign name.",
        "exposure": "Listening beyond loopback without authentication is refused unless told otherwise.",
    },
    "000 tools, configurations and inputs": {
        "config-models": "Server and input configurations are read in every shape, and refused with the field.",
        "config-files": "Configuration files are JSON with comments or TOML, in any of their shapes.",
        "tools-names": "Aliases, forbidden tools and clashes of names are as WIRE §7 says.",
        "tools-meta": "meta has the namespaces and JSON strings of 000.",
        "tools-arguments": "Arguments are checked against the tool's schema before the call.",
        "inputs-render": "${input:id} is filled in anywhere, once, and keeps its type.",
        "inputs-sources": "A value is explicit, or from the environment, the keyring, the owner, or the default.",
        "inputs-command": "A command input runs without a shell, approved, and bounded.",
        "transform-mapper": "ret_object_mapper adds one uniform object to a result.",
        "transform-vrl": "vrl runs compiled, contained and killable, and leaves the original.",
    },
    "003 scenarios": {
        "mcp-stdio": "A stdio server is run with all its parameters, and ends with all its children.",
        "mcp-eras": "Servers of both MCP eras are spoken with.",
        "mcp-transports": "stdio, streamable HTTP and SSE are spoken.",
        "mcp-robust": "A server that misbehaves harms nobody else.",
        "mcp-raw-results": "Results pass through as they came.",
        "supervise-states": "Each server has one state, and a reason.",
        "supervise-isolation": "No server delays or fails another.",
        "supervise-restart": "A server that is lost comes back by itself.",
        "supervise-orphans": "No process is left behind.",
        "supervise-idle-stop": "A server nobody uses can be stopped, and is started by the next call.",
        "secrets-masked": "A secret is masked in everything textual that leaves.",
        "secrets-structure": "Masking leaves the words of the protocol, and the names that agents say back, in place.",
        "secrets-config": "The configuration that agents see holds no secret.",
        "secrets-logs": "No log record holds a secret.",
        "computer-serves": "An agent uses tools, desktop and configuration of a computer through the Server.",
        "computer-malformed": "A computer answers what is malformed, or too large to be answered, with its code.",
        "computer-approval": "What is not allowed beforehand is asked of the owner, or refused.",
        "computer-dedup": "A computer never runs a tool twice for one req_id.",
        "computer-cancel": "A cancel stops its call and no other.",
        "computer-progress": "Whoever follows a call hears how far it has got, at no cost to the call.",
        "computer-recovers": "A crash fails its calls at once, and the tools come back.",
    },
    "004": {
        "desktop-organize": "The desktop is filtered, ordered and cut as 004 says, reading no more than it takes.",
        "desktop-render": "Windows are rendered as 004 says.",
        "desktop-watch": "What changes on the desktop is noticed.",
    },
    "001": {
        "registry-001": "MCPRegistry registers, describes and calls as 001 says.",
        "registry-functions": "Plain functions are tools, with a schema from their signature.",
        "registry-wire": "A registry can be hosted like an MCP server.",
        "registry-execute": "execute describes and calls, whatever the shape of its payload.",
        "registry-envelope": "§7: a result can be had as output and meta, and is never wrapped twice.",
        "registry-validation": "§9: defaults are filled in, then arguments are checked; faults have JSON pointers.",
        "registry-policy": "§9: tools are allowed and denied by name, pattern and tag; deny wins.",
        "registry-timeout": "§9: a call ends in time, whoever makes it.",
        "registry-retry": "§9: only tools that can be repeated are called again, after a drawn pause.",
        "registry-telemetry": "§9: hooks and spans tell name, duration, outcome, cost and sizes, and no arguments.",
        "registry-replay": "§9: what was recorded can be replayed.",
        "registry-async": "§9: many calls at once, with limits and a bounded line for each tool.",
        "registry-formats": "Tools are described as each model provider and MCP want them.",
        "registry-cost": "Everything is compiled at registration; what is off is not there.",
        "registry-address": "001's address works from the wheel and shadows no other sage.",
    },
    "003 Agent": {
        "agent-asks": "An agent calls tools, and asks for tools, configuration, desktop, members and anything newer.",
        "agent-reacts": "What 002 asks of an agent: tools are fetched on enter and update, dropped on leave.",
        "agent-registry": "Its registry shows the tools of every computer beside the local ones, under clear names.",
        "agent-offices": "An agent may sit in several offices, and be refused by one.",
        "agent-cancels": "Who stops waiting for a call cancels it on the computer.",
        "agent-rejoins": "A lost line or a restarted Server loses no call, and runs none twice.",
        "agent-handlers": "Handlers hear of everything in order, and harm nothing.",
        "agent-desktop": "A desktop that was asked for is kept current.",
        "agent-twins": "The blocking client and the async one differ in waiting only.",
        "agent-interop": "Both work with published computers through our Server, and with the published Server.",
        "agent-program": "a2c-smcp agent lists, calls, cancels, looks and watches, for people and for programs.",
    },
    "The command line": {
        "demo": "a2c-smcp demo shows all of it on one machine, and fails unless it happened.",
    },
    "The program": {
        "program": "a2c-smcp server says where it listens, and is configured by options and environment.",
        "program-shutdown": "SIGTERM lets calls finish, tells the rest, and exits 0.",
        "program-errors": "Wrong use ends at once with a sentence that says what to do.",
        "tls": "It serves TLS.",
        "no-secrets-in-logs": "No credential and no payload is ever logged.",
        "mounting": "It can be mounted in another application, or its namespace in another server.",
        "crowd": "500 clients that join at once all succeed.",
    },
}

REQUIREMENTS = {row: Requirement(source, text) for source, rows in _TABLE.items() for row, text in rows.items()}
