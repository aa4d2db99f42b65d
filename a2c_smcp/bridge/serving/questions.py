"""What an MCP server asks in the middle of a request, put to the MCP client in the client's own revision.

Computers are asked for MCP's own way (WIRE §9, `questions: "result"`): their answer may be an `InputRequiredResult`. A
client of 2026-07-28 gets it as it is, and comes back with the responses and the state, which is sealed by the SDK and
bound to the request (`RequestStateBoundary`). To a client of an older revision each input request is sent as a request
of this server, and the computer is asked again with the responses. A client that has declared no such capability takes
part in none of this: then the owner of the computer is asked, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2c_smcp.agent import ReadOptions
from a2c_smcp.agent.reading.answers import is_input_required
from a2c_smcp.agent.reading.rounds import MOST_ROUNDS, Send, going_on, responses_to
from a2c_smcp.protocol.questions import ELICITATION
from a2c_smcp.registry.calls.caller import CannotAsk
from a2c_smcp.registry.remote.announcing import Request, is_modern
from a2c_smcp.registry.remote.rounds import client_of, input_capabilities, push_to

__all__ = ["answered"]


async def answered(context: Request, send: Send, withdraw: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """MCP's result of a request, after the client has answered what was asked, or what is asked.

    `withdraw` is called if the questions that `send` has returned will not be answered. Raises what `send` raises.
    """
    params = context.params or {}
    options: ReadOptions = {}
    if client := client_of(context):
        options["client"] = client
    if declared := input_capabilities(context):
        options |= {"questions": "result", "client_capabilities": declared}
    if is_modern(context):
        return await send(going_on(options, params.get("inputResponses"), params.get("requestState")))
    for _ in range(MOST_ROUNDS):
        result = await send(options)
        if not is_input_required(result):
            return result
        try:
            responses = await responses_to(result.get("inputRequests"), push_to(context))
        except BaseException:
            withdraw()
            raise
        options = going_on(options, responses, result.get("requestState"))
    withdraw()
    raise CannotAsk("the MCP server asks too much", method=ELICITATION)
