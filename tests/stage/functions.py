"""A computer whose functions report, log and ask."""

from __future__ import annotations

import asyncio
from typing import Any

from a2c_smcp.computer.computer import Computer
from a2c_smcp.registry import AsyncToolContext, Image, ToolContext, ToolResult

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


PASSWORD = {"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password"]}


def computer_with_functions(**options: Any) -> Computer:
    computer = Computer("laptop", **options)

    @computer.tool(auto_apply=True)
    def greet(context: ToolContext) -> str:
        context.progress(1, 2)
        context.log("warning", "about to ask", logger="greeter")
        found = context.ask("Who are you?", NAME)
        return f"hi {(found.content or {}).get('name', found.action)}"

    @computer.tool(auto_apply=True)
    async def steps(pause: float, context: AsyncToolContext) -> str:
        for step in range(8):
            await context.progress(step)
            await asyncio.sleep(pause)
        return "done"

    @computer.tool(auto_apply=True)
    async def sign_in(context: AsyncToolContext) -> str:
        found = await context.ask("Your password?", PASSWORD)
        return f"it is {(found.content or {}).get('password')}"

    @computer.tool(auto_apply=True)
    def chart() -> ToolResult:
        return ToolResult(["see", Image(b"png")], {"bars": 2}, meta={"trace": "7"})

    return computer
