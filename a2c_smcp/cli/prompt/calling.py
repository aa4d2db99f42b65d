"""`call`: the owner uses a tool himself. What its schema asks for and the line does not say is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from a2c_smcp.cli.prompt.approvals import OWNER
from a2c_smcp.cli.prompt.arguments import Parameter, parameters_of, read_arguments, to_ask
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.jobs import Job
from a2c_smcp.cli.prompt.language import Command, WrongUse
from a2c_smcp.protocol.results import CallToolResult

__all__ = ["CALLING", "schema_of"]

_TIMEOUT = 3600.0
"""Somebody is watching, who can end it before."""


def schema_of(console: Console, name: str) -> Mapping[str, Any]:
    """What the tool of this name takes. Raises `WrongUse`."""
    for tool in console.computer.get_tools():
        if tool["name"] == name:
            return tool["params_schema"]
    raise WrongUse(f"there is no tool {name!r}: tools lists them")


async def _call(console: Console, arguments: list[str]) -> Job | None:
    name, *words = arguments
    schema = schema_of(console, name)
    try:
        given = read_arguments(words, schema)
    except ValueError as problem:
        raise WrongUse(str(problem)) from None
    for parameter in to_ask(schema, given):
        answer = await console.questions.ask(parameter.question, partial(_read, parameter), hidden=parameter.is_secret)
        if answer is None:
            raise WrongUse(f"{name} is not called")
        given |= answer
    secrets = [str(given[each.name]) for each in parameters_of(schema) if each.is_secret and each.name in given]
    console.computer.mask.add(secrets)
    job = Job(f"call {name}", lambda: _run(console, job, name, given))
    return job


def _read(parameter: Parameter, text: str) -> dict[str, Any]:
    """An optional argument may be left out."""
    if text or (parameter.is_required and parameter.types == ("string",)):
        return {parameter.name: parameter.read(text)}
    if parameter.is_required:
        raise ValueError(f"{parameter.name} is needed; Ctrl-C gives up")
    return {}


async def _run(console: Console, job: Job, name: str, params: dict[str, Any]) -> None:
    req_id = uuid4().hex
    try:
        answer = await console.computer.execute_tool(OWNER, req_id, name, params, _TIMEOUT, _noting(job))
    except asyncio.CancelledError:
        console.computer.cancel(OWNER.agent, req_id)
        raise
    _show(console, name, CallToolResult.from_wire(answer))


def _noting(job: Job) -> Callable[[float, float | None, str | None], None]:
    def note(progress: float, total: float | None, message: str | None) -> None:
        of = f" of {total:g}" if total is not None else ""
        job.note = f"{progress:g}{of}{f', {message}' if message else ''}"

    return note


def _show(console: Console, name: str, result: CallToolResult) -> None:
    if result.is_error:
        console.say(result.text or f"{name} failed and does not say why", "red")
    elif result.text:
        console.say(result.text)
    elif result.structured_content is not None:
        console.say(json.dumps(result.structured_content, ensure_ascii=False, indent=2))
    kinds = {str(block.get("type")) for block in result.content if isinstance(block, dict)} - {"text"}
    for kind in sorted(kinds):
        console.say(f"there is more, of type {kind}, which cannot be shown here", "yellow")


CALLING = (Command("call", "TOOL [NAME=VALUE…]", "Call a tool yourself; what is missing is asked for.", _call),)
