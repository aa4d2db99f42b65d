"""A program that calls tools within spans of its own: `agent_program.py URL FILE`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from opentelemetry import trace

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import SMCPError
from a2c_smcp.telemetry.exporting import export_traces


async def main(url: str) -> None:
    tracer = trace.get_tracer("program")
    async with AsyncSMCPAgentClient("planner", url=url, office="desk") as agent:

        async def call(tool: str, params: dict[str, Any], **options: Any) -> None:
            with tracer.start_as_current_span(f"work with {tool}"):
                try:
                    result = await agent.emit_tool_call("laptop", tool, params, timeout=30, **options)
                except SMCPError as error:
                    print(tool, error.code, flush=True)
                else:
                    print(tool, result.text, flush=True)

        await call("add", {"a": 1, "b": 2})
        await call("fail", {})
        await call("book", {"day": "Monday"}, on_question=answer)
        await call("missing", {})
        await call("count", {"text": "x" * 20_000})
        with tracer.start_as_current_span("work with a list"):
            await agent.get_tools("laptop")
        with tracer.start_as_current_span("work with a resource"):
            (resource,) = (await agent.get_resources("laptop", "tools"))["resources"]
            read = await agent.read_resource("laptop", "tools", resource["uri"])
            print(resource["uri"], read["contents"][0]["text"], flush=True)


def answer(question: Any) -> Any:
    """A yes to a question for approval, and how many people come."""
    return {name: field["enum"][-1] if "enum" in field else 4 for name, field in question.schema["properties"].items()}


if __name__ == "__main__":
    export = export_traces("program", Path(sys.argv[2]))
    try:
        asyncio.run(main(sys.argv[1]))
    finally:
        export()
