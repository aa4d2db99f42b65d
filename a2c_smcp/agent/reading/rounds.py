"""Requests whose MCP server asks something before it answers: a program is asked, and the request is sent again.

Computers are asked for MCP's own way (WIRE §9, `questions: "result"`): their answer may be an `InputRequiredResult`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from a2c_smcp.agent.reading.answers import MCPResult, is_input_required
from a2c_smcp.protocol.questions import ELICITATION
from a2c_smcp.registry.calls.caller import CannotAsk, InputAsked, OnInput, ToolCaller
from a2c_smcp.registry.calls.progress import OnProgress

__all__ = ["MOST_ROUNDS", "ReadOptions", "Send", "answered_by", "going_on", "responses_to"]

MOST_ROUNDS = 64


class ReadOptions(TypedDict, total=False):
    """How a resource or a prompt is to be asked for. All of it is optional.

    - `on_transfer(bytes, total, None)` is called while a large content is fetched.

    The others are for programs that speak MCP themselves:

    - `questions="result"`: what the MCP server asks first is returned as it came (MCP's `InputRequiredResult`). Ask
      again with `input_responses` (a result for each of its `inputRequests`, under the same key) and its
      `requestState` as `request_state`.
    - `client_capabilities` are what the computer declares to the MCP server for this request, in MCP's spelling.
    - `client` is the MCP client that the agent asks for, as `{"name": …, "version": …}`. The owner is shown its name.
    """

    questions: Literal["result"] | None
    input_responses: Mapping[str, Any] | None
    request_state: str | None
    client_capabilities: Mapping[str, Any] | None
    client: Mapping[str, str] | None
    on_transfer: OnProgress | None


Send: TypeAlias = Callable[[ReadOptions], Awaitable[MCPResult]]
"""Asks the computer, with these options. Returns MCP's result."""


async def answered_by(caller: ToolCaller | None, send: Send) -> MCPResult:
    """MCP's result, after the caller has answered what was asked. Raises `CannotAsk`, and what `send` raises."""
    options = _options(caller)
    for _ in range(MOST_ROUNDS):
        result = await send(options)
        if caller is None or not is_input_required(result):
            return result
        responses = await responses_to(result.get("inputRequests"), caller.request)
        options = going_on(options, responses, result.get("requestState"))
    raise CannotAsk("the MCP server asks too much", method=ELICITATION)


def _options(caller: ToolCaller | None) -> ReadOptions:
    options: ReadOptions = {}
    if caller and caller.client:
        options["client"] = caller.client
    if caller and caller.capabilities:
        options |= {"questions": "result", "client_capabilities": caller.capabilities}
    return options


def going_on(options: ReadOptions, responses: Any, state: Any) -> ReadOptions:
    """The options of the request that follows, with the responses and the state."""
    following = options.copy()
    if isinstance(responses, Mapping):
        following["input_responses"] = responses
    if isinstance(state, str):
        following["request_state"] = state
    if len(following) > len(options):
        following["questions"] = "result"
    return following


async def responses_to(requests: Any, respond: OnInput) -> dict[str, Any]:
    """The responses to input requests, by their names. Raises `CannotAsk`."""
    asked = {name: _asked(each) for name, each in requests.items()} if isinstance(requests, Mapping) else {}
    responses = await asyncio.gather(*(_response(respond, each) for each in asked.values()))
    return dict(zip(asked, responses, strict=True))


async def _response(respond: OnInput, asked: InputAsked) -> dict[str, Any]:
    """An elicitation that is not answered is cancelled; the others have no such answer."""
    try:
        response: dict[str, Any] = await respond(asked)
    except CannotAsk:
        if asked.method != ELICITATION:
            raise
        return {"action": "cancel"}
    return response


def _asked(request: Any) -> InputAsked:
    method, params = (request.get("method"), request.get("params")) if isinstance(request, Mapping) else ("", {})
    return InputAsked(str(method), params if isinstance(params, dict) else {})
