"""What an MCP server asks in the middle of a request, put to the MCP client in the client's own revision.

Computers are asked for MCP's own way (WIRE §9, `questions: "result"`): their answer may be an `InputRequiredResult`. A
client of 2026-07-28 gets it as it is, and comes back with the responses and the state, which is sealed by the SDK and
bound to the request (`RequestStateBoundary`). To a client of an older revision each input request is sent as a request
of this server, and the computer is asked again with the responses. A client that has declared no such capability takes
part in none of this: then the owner of the computer is asked, if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from a2c_smcp.agent import ReadOptions
from a2c_smcp.agent.reading.answers import is_input_required
from a2c_smcp.protocol.questions import ELICITATION
from a2c_smcp.registry.calls.caller import CannotAsk, InputAsked, OnInput
from a2c_smcp.registry.remote.announcing import Request, is_modern
from a2c_smcp.registry.remote.rounds import client_of, input_capabilities, push_to

__all__ = ["Send", "answered"]

Send: TypeAlias = Callable[[ReadOptions], Awaitable[dict[str, Any]]]
"""Asks the computer, with these options. Returns MCP's result."""

_MOST_ROUNDS = 64


async def answered(context: Request, send: Send, withdraw: Callable[[], None] = lambda: None) -> dict[str, Any]:
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
        return await send(_going_on(options, params.get("inputResponses"), params.get("requestState")))
    for _ in range(_MOST_ROUNDS):
        result = await send(options)
        if not is_input_required(result):
            return result
        try:
            responses = await _pushed(push_to(context), result.get("inputRequests"))
        except BaseException:
            withdraw()
            raise
        options = _going_on(options, responses, result.get("requestState"))
    withdraw()
    raise CannotAsk("the MCP server asks too much", method=ELICITATION)


def _going_on(options: ReadOptions, responses: Any, state: Any) -> ReadOptions:
    going_on = options.copy()
    if isinstance(responses, Mapping):
        going_on["input_responses"] = responses
    if isinstance(state, str):
        going_on["request_state"] = state
    if len(going_on) > len(options):
        going_on["questions"] = "result"
    return going_on


async def _pushed(push: OnInput, requests: Any) -> dict[str, Any]:
    """The client's responses to input requests, by their names."""
    asked = {name: _asked(each) for name, each in requests.items()} if isinstance(requests, Mapping) else {}
    responses = await asyncio.gather(*(_response(push, each) for each in asked.values()))
    return dict(zip(asked, responses, strict=True))


async def _response(push: OnInput, asked: InputAsked) -> dict[str, Any]:
    """An elicitation that the client does not answer is cancelled; the others have no such answer."""
    try:
        response: dict[str, Any] = await push(asked)
    except CannotAsk:
        if asked.method != ELICITATION:
            raise
        return {"action": "cancel"}
    return response


def _asked(request: Any) -> InputAsked:
    method, params = (request.get("method"), request.get("params")) if isinstance(request, Mapping) else ("", {})
    return InputAsked(str(method), params if isinstance(params, dict) else {})
