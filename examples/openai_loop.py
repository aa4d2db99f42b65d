"""A tool-calling loop in the style of the OpenAI API, over the tools of all computers in an office.

    python examples/openai_loop.py

It needs no network: `ScriptedModel` takes the place of a model. With a real model, `complete` is

    client = AsyncOpenAI()
    answer = await client.chat.completions.create(model="…", messages=messages, tools=tools)
    return answer.choices[0].message.model_dump(exclude_none=True)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from office import OFFICE, office_of

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.registry import MCPRegistry

Message = dict[str, Any]
Complete = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Message]]

computer = Computer("laptop")


@computer.tool(auto_apply=True)
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def converse(question: str, registry: MCPRegistry, complete: Complete) -> str:
    """Ask the model, run the tools it calls, and send it the results, until it answers."""
    messages: list[Message] = [{"role": "user", "content": question}]
    while True:
        message = await complete(messages, registry.describe("openai"))
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            result = await carry_out(call["function"], registry)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})


async def carry_out(function: dict[str, str], registry: MCPRegistry) -> Any:
    """Return the result or the error of a call; the model corrects its call if it knows the error."""
    try:
        return await registry.acall(function["name"], json.loads(function["arguments"]))
    except Exception as error:
        return {"error": str(error)}


class ScriptedModel:
    """Makes a wrong call, then a correct one, and then answers with its result."""

    def __init__(self) -> None:
        self._calls = iter(['{"a": 6}', '{"a": 6, "b": 7}'])

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
        print(f"model: hears {messages[-1]['content']}")
        arguments = next(self._calls, None)
        if arguments is None:
            return {"role": "assistant", "content": f"It is {json.loads(messages[-1]['content'])['result']}."}
        function = {"name": tools[0]["function"]["name"], "arguments": arguments}
        call = {"id": f"call_{len(messages)}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


async def main() -> None:
    async with (
        office_of(computer) as url,
        AsyncSMCPAgentClient("planner", url=url, office=OFFICE) as agent,
    ):
        print("answer:", await converse("What is 6 times 7?", agent.registry, ScriptedModel().complete))


if __name__ == "__main__":
    asyncio.run(main())
