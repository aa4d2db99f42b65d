"""What happens on a Server, reported as typed values to observers in the same process.

An observer is a function that takes one of the classes of `Happened`; the operator's event stream and the log are two
of them. `app.observation.add(observer)` (or `hub.observation`) adds one; with `often=True` it is also told what
happens often: calls, updates and tells. It is called in the step of the event loop in which the thing happens, before
the answer leaves. `describe` gives the facts of any of them as a flat object for JSON, without secrets.

A recorder, such as the audit file and the metrics, is called with all that has happened in a turn of the event loop, in
its order, before anything of it is written to a socket: so what it costs is paid once a turn, and little for each call.
`observation.record(recorder)` adds one. A call that has ended is given to it as the `Call` itself, and `call_ended`
makes a `CallEnded` of it. It is not told what is under way: calls that begin, updates, tells.

Neither may wait, nor change anything; if one raises, the exception is logged and the Server goes on. While nobody wants
to know of calls, a call costs one test of `follows_requests`.

Each thing is reported once in a cluster, by one node:

- A request to a computer that was begun: `CallBegun`, then `CallEnded`, by the node that the agent is connected to.
  Duplicates, and answers that were kept for an agent that asks again, are the same call. If the agent has moved to
  another node meanwhile, that node reports the end, once the agent asks again there.
- A request that was refused before it began, or is not one to a computer: `EventRefused`, by the node of its sender. So
  a tool call leaves either one `CallEnded` or one `EventRefused` whose `event.is_call`.
- A tool call of an MCP client that this Server's own bridge refuses (`server --mcp`), such as one for a tool that the
  office does not have, was never sent: `McpCallRefused`.
- Seats: by the node that committed the change. A client that is back on another connection has `TakenOver` its seats;
  it neither `Left` nor `Joined`.
- A client that was not let in: `HandshakeRefused`, at the HTTP request or at the CONNECT.
"""

from a2c_smcp.server.observation.happened import (
    CallBegun,
    CallEnded,
    CancelAsked,
    ClientConnected,
    ClientGone,
    Displaced,
    EventRefused,
    HandshakeRefused,
    Happened,
    Joined,
    Left,
    McpCallRefused,
    McpClientSeen,
    OperatorActed,
    ReaderCut,
    TakenOver,
    Told,
    Updated,
    answered_size,
    call_ended,
    recorded_fields,
    result_of,
)
from a2c_smcp.server.observation.reporting import EVENT_NAMES, Observation, Observer, Recorded, Recorder, describe

__all__ = [
    "EVENT_NAMES",
    "CallBegun",
    "CallEnded",
    "CancelAsked",
    "ClientConnected",
    "ClientGone",
    "Displaced",
    "EventRefused",
    "HandshakeRefused",
    "Happened",
    "Joined",
    "Left",
    "McpCallRefused",
    "McpClientSeen",
    "Observation",
    "Observer",
    "OperatorActed",
    "ReaderCut",
    "Recorded",
    "Recorder",
    "TakenOver",
    "Told",
    "Updated",
    "answered_size",
    "call_ended",
    "describe",
    "recorded_fields",
    "result_of",
]
