"""A LangChain tool-calling loop over the tools of all computers in an office.

    pip install langchain-core
    python examples/langchain_loop.py

It needs no network: `scripted_model` takes the place of a chat model. Replace it by any chat model of LangChain that
supports `bind_tools` with the format of `describe("openai")`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable
from office import OFFICE, office_of

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.registry import MCPRegistry

computer = Computer("laptop")


@computer.tool(auto_apply=True)
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def converse(question: str, registry: MCPRegistry, model: Runnable[list[BaseMessage], AIMessage]) -> str:
    """Ask the model, run the tools it calls, and send it the results, until it answers."""
    messages: list[BaseMessage] = [HumanMessage(question)]
    while True:
        answer = await model.ainvoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return answer.text
        messages += [await carry_out(call, registry) for call in answer.tool_calls]


async def carry_out(call: ToolCall, registry: MCPRegistry) -> ToolMessage:
    """Return the result or the error of a call; the model corrects its call if it knows the error."""
    try:
        content, status = json.dumps(await registry.acall(call["name"], call["args"])), "success"
    except Exception as error:
        content, status = str(error), "error"
    print(f"tool: {call['name']}({call['args']}) is a {status}: {content}")
    return ToolMessage(content, tool_call_id=call["id"], status=status)


class FakeChatModel(GenericFakeChatModel):
    """Returns fixed messages, and ignores the tools it is given."""

    def bind_tools(self, tools: Any, **options: Any) -> Runnable[Any, AIMessage]:
        print(f"model: knows {', '.join(tool['function']['name'] for tool in tools)}")
        return self


def scripted_model() -> FakeChatModel:
    call = ToolCall(name="word_count", args={"text": "to be or not to be"}, id="call_1")
    return FakeChatModel(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("It has 6 words.")]))


async def main() -> None:
    async with (
        office_of(computer) as url,
        AsyncSMCPAgentClient("planner", url=url, office=OFFICE) as agent,
    ):
        model = scripted_model().bind_tools(agent.registry.describe("openai"))
        print("answer:", await converse("How long is Hamlet's question?", agent.registry, model))


if __name__ == "__main__":
    asyncio.run(main())
