"""Models that need no account: each calls the tool `add` with 40 and 2, and then tells what came of it.

The other examples use them in place of a real model, which is one line in each framework.
"""

from __future__ import annotations

from typing import Any

TOOL, ARGUMENTS = "add", {"a": 40, "b": 2}


def for_langchain() -> Any:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, ToolCall, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class ScriptedModel(BaseChatModel):
        _llm_type = "scripted"

        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, messages: Any, *_: Any, **options: Any) -> ChatResult:
            last = messages[-1]
            call = AIMessage("", tool_calls=[ToolCall(name=TOOL, args=ARGUMENTS, id="1")])
            answer = AIMessage(f"It is {last.text}.") if isinstance(last, ToolMessage) else call
            return ChatResult(generations=[ChatGeneration(message=answer)])

    return ScriptedModel()


def for_openai_agents() -> Any:
    import json

    from agents import Model, ModelResponse, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class ScriptedModel(Model):
        async def get_response(self, system_instructions: Any, input: Any, *_: Any, **options: Any) -> ModelResponse:  # noqa: A002, its name there
            last = input[-1] if isinstance(input, list) else {}
            if last.get("type") != "function_call_output":
                call: Any = ResponseFunctionToolCall(
                    type="function_call", call_id="1", name=TOOL, arguments=json.dumps(ARGUMENTS)
                )
                return ModelResponse([call], Usage(), None)
            output = last["output"]
            text = output if isinstance(output, str) else output[0]["text"]
            said = ResponseOutputText(type="output_text", text=f"It is {text}.", annotations=[])
            message = ResponseOutputMessage(
                id="2", type="message", role="assistant", status="completed", content=[said]
            )
            return ModelResponse([message], Usage(), None)

        def stream_response(self, *_: Any, **options: Any) -> Any:
            raise NotImplementedError

    return ScriptedModel()


def for_pydantic_ai() -> Any:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    def respond(messages: Any, info: Any) -> ModelResponse:
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse([TextPart(f"It is {last.model_response_str()}.")])
        return ModelResponse([ToolCallPart(TOOL, ARGUMENTS)])

    return FunctionModel(respond)
