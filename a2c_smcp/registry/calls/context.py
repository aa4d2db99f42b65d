"""What a running tool can say to its caller and ask of it: progress, log messages, questions.

A function gets a `ToolContext` (an async one an `AsyncToolContext`) by a parameter with that annotation, which its
schema does not show. The two differ in waiting; what is asked, and how an answer is read, is said once below them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.questions import ELICITATION, Answer
from a2c_smcp.registry.calls.caller import InputAsked, ToolCaller, cannot_ask, tool_caller
from a2c_smcp.registry.calls.progress import OnProgress, progress_listener
from a2c_smcp.registry.content import json_of, without_nothing
from a2c_smcp.registry.schemas.check import Fault, Schema, find_faults, find_faults_async

__all__ = ["Ability", "AsyncToolContext", "ToolContext"]

Ability: TypeAlias = Literal["ask", "sample", "roots"]
_ABILITIES: Mapping[str, Ability] = {"elicitation": "ask", "sampling": "sample", "roots": "roots"}
_SAMPLING, _ROOTS = "sampling/createMessage", "roots/list"

Messages: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A question to a model, or MCP's messages."""

_LEVELS = get_args(LogLevel)
_NO_FIELDS = {"type": "object", "properties": {}}


class _CallContext:
    """What the contexts of sync and async tools share. All of it may be used in any thread."""

    is_for_async: ClassVar[bool]

    def __init__(self, caller: ToolCaller | None, report: OnProgress | None) -> None:
        self._caller, self._report = caller, report

    @classmethod
    def current(cls) -> Self:
        """The context of the call that this code runs in, for tools that are not functions."""
        return cls(tool_caller(), progress_listener())

    @property
    def can(self) -> frozenset[Ability]:
        """What the caller can be asked: `ask`, `sample`, `roots`. Other requests raise `CannotAsk`."""
        declared = self._caller.capabilities if self._caller else {}
        return frozenset(_ABILITIES[each] for each in declared if each in _ABILITIES)

    def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._report is not None:
            self._report(progress, total, message)

    def _log(self, level: LogLevel, data: Any, name: str | None) -> None:
        if level not in _LEVELS:
            raise ValueError(f"{level!r} is not a level: {', '.join(_LEVELS)}")
        if self._caller is not None:
            self._caller.log(level, json_of(data), name)

    def _require(self, method: str) -> ToolCaller:
        if self._caller is None:
            raise cannot_ask(method)
        return self._caller


class ToolContext(_CallContext):
    """For a tool that is a plain function: annotate a parameter with it."""

    is_for_async = False

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Reports how far the tool is; `progress` must grow. Does not block. Ignored if nobody wants to know."""
        self._progress(progress, total, message)

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        """Sends a log message: a text, or anything that is JSON. Does not block. Ignored if nobody wants it."""
        self._log(level, data, logger)

    def ask(self, message: str, schema: Mapping[str, Any] | None = None, *, key: str | None = None) -> Answer:
        """Asks the person behind the caller to fill in a form, and waits for the answer.

        `schema` is a JSON schema of an object with one level of properties; without one there is only yes or no. The
        answer's `action` is `accept`, `decline` or `cancel`, its `content` has the values and fits the schema. `key`
        names the question in MCP's messages. Raises `CannotAsk`, and `BadRequest` for an answer that does not fit.
        """
        asked = _form(message, schema, key)
        answer = _read_answer(self._require(ELICITATION).request_blocking(asked))
        return _checked(answer, find_faults(*_to_check(answer, schema)))

    def sample(
        self, messages: Messages, max_tokens: int = 1000, *, key: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Asks the caller's model, and returns MCP's result. `more` are MCP's parameters. Deprecated in MCP."""
        asked = _sampling(messages, max_tokens, key, more)
        return self._require(asked.method).request_blocking(asked)

    def roots(self, *, key: str | None = None) -> list[dict[str, Any]]:
        """The folders that the caller works in. Deprecated in MCP."""
        asked = InputAsked(_ROOTS, {}, key)
        return _read_roots(self._require(asked.method).request_blocking(asked))


class AsyncToolContext(_CallContext):
    """For a tool that is an async function: annotate a parameter with it. As `ToolContext`, but awaited."""

    is_for_async = True

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> Awaitable[None]:
        """Reports how far the tool is; `progress` must grow. It is done at once, whether it is awaited or not."""
        self._progress(progress, total, message)
        return _DONE

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> Awaitable[None]:
        """Sends a log message: a text, or anything that is JSON. It is done at once, whether it is awaited or not."""
        self._log(level, data, logger)
        return _DONE

    async def ask(self, message: str, schema: Mapping[str, Any] | None = None, *, key: str | None = None) -> Answer:
        """Asks the person behind the caller to fill in a form. See `ToolContext.ask`."""
        asked = _form(message, schema, key)
        answer = _read_answer(await self._require(ELICITATION).request(asked))
        return _checked(answer, await find_faults_async(*_to_check(answer, schema)))

    async def sample(
        self, messages: Messages, max_tokens: int = 1000, *, key: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Asks the caller's model, and returns MCP's result. See `ToolContext.sample`."""
        asked = _sampling(messages, max_tokens, key, more)
        return await self._require(asked.method).request(asked)

    async def roots(self, *, key: str | None = None) -> list[dict[str, Any]]:
        """The folders that the caller works in. Deprecated in MCP."""
        asked = InputAsked(_ROOTS, {}, key)
        return _read_roots(await self._require(asked.method).request(asked))


class _Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE = _Done()


def _form(message: str, schema: Mapping[str, Any] | None, key: str | None) -> InputAsked:
    return InputAsked(ELICITATION, {"message": message, "requestedSchema": json_of(dict(schema or _NO_FIELDS))}, key)


def _sampling(messages: Messages, max_tokens: int, key: str | None, more: Mapping[str, Any]) -> InputAsked:
    one = [{"role": "user", "content": {"type": "text", "text": messages}}]
    listed = one if isinstance(messages, str) else json_of([*messages])
    params = {"messages": listed, "maxTokens": max_tokens, **without_nothing(more)}
    return InputAsked(_SAMPLING, params, key)


def _read_answer(result: Mapping[str, Any]) -> Answer:
    answer = Answer(result.get("action"), result.get("content"))  # type: ignore[arg-type]  # it checks what came
    return Answer(answer.action, dict(answer.content or {})) if answer.action == "accept" else Answer(answer.action)


def _read_roots(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    roots = result.get("roots")
    return [dict(root) for root in roots] if isinstance(roots, list) else []


def _to_check(answer: Answer, schema: Mapping[str, Any] | None) -> tuple[Schema, Any]:
    """What an accepted answer must fit; any other fits."""
    return Schema(dict(schema or {}) if answer.action == "accept" else {}), answer.content or {}


def _checked(answer: Answer, faults: list[Fault]) -> Answer:
    if not faults:
        return answer
    about = "; ".join(f"{fault['path'].removeprefix('/')}: {fault['message']}".lstrip(": ") for fault in faults)
    raise BadRequest(f"the answer does not fit the question: {about}", errors=faults)
