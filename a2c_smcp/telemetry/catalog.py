"""All metrics of a Server and of a computer: the one table from which they are made, checked and documented.

A name says its unit (`_seconds`, `_bytes`) and ends with `_total` if the number only grows. A label has few values:
names of clients, offices and tools are never labels.
"""

from __future__ import annotations

from a2c_smcp.telemetry.metrics import MetricSpec

__all__ = ["COMPUTER", "LATENCY_BUCKETS", "SERVER"]

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_FAILING = "1 while the audit file (--audit) cannot be written or rotated: entries wait, or the file grows."
_LOST = "Entries of the audit file that were dropped, because too many were waiting."

_PROCESS = (
    MetricSpec("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970."),
    MetricSpec("process_cpu_seconds_total", "counter", "Processor time of the process."),
    MetricSpec("process_resident_memory_bytes", "gauge", "Memory of the process."),
    MetricSpec("process_open_fds", "gauge", "Open files and sockets of the process."),
)

SERVER = (
    MetricSpec("a2c_build_info", "gauge", "Always 1. The labels say what runs.", ("version", "python")),
    MetricSpec("a2c_ready", "gauge", "1 while new clients may come, 0 while it drains or has lost its store."),
    MetricSpec("a2c_node_up", "gauge", "1 for a process that answered this scrape, 0 for a worker that did not."),
    MetricSpec("a2c_workers", "gauge", "Processes that serve this port (--workers)."),
    MetricSpec("a2c_sessions", "gauge", "Engine.IO sessions, also of clients that are not authenticated."),
    MetricSpec("a2c_connections", "gauge", "Authenticated connections."),
    MetricSpec("a2c_connects_total", "counter", "Connections that were authenticated."),
    MetricSpec("a2c_offices", "gauge", "Offices with a member. Each office is counted by one node only."),
    MetricSpec("a2c_members", "gauge", "Seats of clients connected here, by protocol version.", ("role", "version")),
    MetricSpec("a2c_calls_in_flight", "gauge", "Requests to computers that are not answered yet."),
    MetricSpec(
        "a2c_calls_total",
        "counter",
        "Requests of agents to computers that have ended. The outcome is ok, tool_error (the tool failed), answered "
        "(it is sealed), or the kind of error: bad_request, busy, cancelled, denied, error, not_found, "
        "sign_in_required, timeout, too_large, unavailable.",
        ("event", "outcome"),
    ),
    MetricSpec(
        "a2c_call_duration_seconds",
        "histogram",
        "From the arrival of a request to its answer.",
        ("event",),
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec("a2c_received_bytes_total", "counter", "Bytes of messages that clients sent."),
    MetricSpec("a2c_sent_bytes_total", "counter", "Bytes of messages that were sent to clients."),
    MetricSpec(
        "a2c_refused_total",
        "counter",
        "Connects, HTTP requests and events that were refused, by the code and the name of the error.",
        ("code", "reason"),
    ),
    MetricSpec(
        "a2c_cut_total",
        "counter",
        "Clients that were disconnected: slow_reader (too much unread), blocked (a write took too long), flood (more "
        "than may be sent before authentication, or too many empty frames), crowd (too many unauthenticated clients).",
        ("reason",),
        known=(("slow_reader",), ("blocked",), ("flood",), ("crowd",)),
    ),
    MetricSpec("a2c_tells_total", "counter", "Messages from a computer to one agent, such as progress and questions."),
    MetricSpec(
        "a2c_tells_dropped_total",
        "counter",
        "Such messages that were not delivered: rate (too many), unread (the agent reads slowly), away (it is gone).",
        ("reason",),
        known=(("rate",), ("unread",), ("away",)),
    ),
    MetricSpec("a2c_passed_on_total", "counter", "HTTP requests that were passed on to the node of their session."),
    MetricSpec("a2c_node_calls_total", "counter", "Requests that came from agents of other nodes to computers here."),
    MetricSpec(
        "a2c_directory_request_duration_seconds",
        "histogram",
        "Round trips to the shared store, by command.",
        ("command",),
        buckets=_STORE_BUCKETS,
    ),
    MetricSpec("a2c_directory_errors_total", "counter", "Round trips to the shared store that failed.", ("command",)),
    MetricSpec(
        "a2c_directory_conflicts_total",
        "counter",
        "Joins and leaves that were decided again, because their office had changed meanwhile.",
    ),
    MetricSpec("a2c_audit_failing", "gauge", _FAILING),
    MetricSpec("a2c_audit_lost_total", "counter", _LOST),
    *_PROCESS,
)

COMPUTER = (
    MetricSpec("a2c_computer_build_info", "gauge", "Always 1. The labels say what runs.", ("version", "python")),
    MetricSpec("a2c_computer_connected", "gauge", "1 while it is connected and sits in its office."),
    MetricSpec("a2c_computer_servers", "gauge", "Configured MCP servers by state.", ("state",)),
    MetricSpec("a2c_computer_tools", "gauge", "Tools that are offered to agents."),
    MetricSpec(
        "a2c_computer_server_starts_total",
        "counter",
        "Starts of each MCP server; all but the first are restarts.",
        ("server",),
    ),
    MetricSpec("a2c_computer_calls_in_flight", "gauge", "Tool calls that run or wait for approval."),
    MetricSpec(
        "a2c_computer_calls_total",
        "counter",
        "Tool calls that have ended, by outcome as on the Server.",
        ("outcome",),
        known=(("ok",), ("tool_error",), ("denied",), ("timeout",), ("cancelled",)),
    ),
    MetricSpec(
        "a2c_computer_call_duration_seconds",
        "histogram",
        "From the arrival of a tool call to its answer, with approval and questions.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec(
        "a2c_computer_approvals_total",
        "counter",
        "Calls that need approval, by who decided, and how: yes, no, always, always_for_agent, none. By grant and "
        "configuration are those that were allowed without asking, by nobody those that nobody could be asked about.",
        ("by", "answer"),
    ),
    MetricSpec("a2c_computer_approvals_waiting", "gauge", "Calls that wait here for an approval."),
    MetricSpec(
        "a2c_computer_questions_total",
        "counter",
        "Questions of tools, by who answered, and how: accept, decline, cancel, none.",
        ("by", "answer"),
    ),
    MetricSpec("a2c_computer_questions_waiting", "gauge", "Questions of tools that wait for an answer."),
    MetricSpec("a2c_computer_refused_total", "counter", "Requests of agents that were refused, by code.", ("code",)),
    MetricSpec(
        "a2c_computer_blobs_total",
        "counter",
        "Large contents that agents have begun to fetch, and files that they have sent.",
        ("direction",),
        known=(("fetched",), ("stored",)),
    ),
    MetricSpec(
        "a2c_computer_blob_bytes_total",
        "counter",
        "Bytes of these contents.",
        ("direction",),
        known=(("fetched",), ("stored",)),
    ),
    MetricSpec("a2c_computer_audit_failing", "gauge", _FAILING),
    MetricSpec("a2c_computer_audit_lost_total", "counter", _LOST),
    *_PROCESS,
)
