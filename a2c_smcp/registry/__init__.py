"""MCPRegistry: tools in this process by name, described to a planner and called (001 and its §9).

And what a tool may return beside plain values, what it may ask its caller, resources and prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.protocol.questions import Answer, OnQuestion, Question
from a2c_smcp.registry.calls.context import AsyncToolContext, CannotAsk, OnLog, OnProgress, ToolContext, report_progress
from a2c_smcp.registry.calls.hooks import Hook, OpenTelemetryHook, ToolCall
from a2c_smcp.registry.calls.pipeline import Limit, Policy, QueueFull, Retry, ToolTimeout
from a2c_smcp.registry.content import (
    Audio,
    EmbeddedResource,
    Image,
    PromptMessage,
    ResourceLink,
    Text,
    ToolFailed,
    ToolNeedsPermission,
    ToolNeedsSignIn,
    ToolResult,
)
from a2c_smcp.registry.functions import FunctionTool, InvalidArguments
from a2c_smcp.registry.planning.plan import BadPlan, Failure, PlanRun, StepOutcome, run_plan, run_plan_async
from a2c_smcp.registry.registry import MCPRegistry
from a2c_smcp.registry.sources import UnknownPrompt, UnknownResource
from a2c_smcp.registry.toolset import UnknownTool

if TYPE_CHECKING:
    from a2c_smcp.registry.remote import RemoteMCPAdapter

__all__ = [
    "Answer",
    "AsyncToolContext",
    "Audio",
    "BadPlan",
    "CannotAsk",
    "EmbeddedResource",
    "Failure",
    "FunctionTool",
    "Hook",
    "Image",
    "InvalidArguments",
    "Limit",
    "LoopIsRunning",
    "MCPRegistry",
    "OnLog",
    "OnProgress",
    "OnQuestion",
    "OpenTelemetryHook",
    "PlanRun",
    "Policy",
    "PromptMessage",
    "Question",
    "QueueFull",
    "RemoteMCPAdapter",
    "ResourceLink",
    "Retry",
    "StepOutcome",
    "Text",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolNeedsPermission",
    "ToolNeedsSignIn",
    "ToolResult",
    "ToolTimeout",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownTool",
    "report_progress",
    "run_plan",
    "run_plan_async",
]


def __getattr__(name: str) -> Any:
    """Imports the adapter when it is first used: it needs the `mcp` package, which takes long to import."""
    if name != "RemoteMCPAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from a2c_smcp.registry.remote import RemoteMCPAdapter

    return RemoteMCPAdapter
