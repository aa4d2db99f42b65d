"""Changes that the owner configures for a tool's result: a JMESPath mapper and a VRL script.

The result stays as it is; the outcome of each is added to its `_meta`. Scripts run in a worker process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jmespath  # type: ignore[import-untyped]
import orjson
from jmespath.functions import Functions  # type: ignore[import-untyped]

from a2c_smcp.errors import ConfigError
from a2c_smcp.installation import install_command
from a2c_smcp.mcp_host import processes
from a2c_smcp.mcp_host.processes.worker import Worker, WorkerDied, WorkerTooSlow, worker_command

MAPPED, MAPPING_ERROR = "a2c_ret_object", "a2c_ret_object_error"
SCRIPTED, SCRIPT_ERROR = "a2c_vrl_transformed", "a2c_vrl_error"

_LONGEST_FAULT = 300  # characters; JMESPath quotes what it does not like
_RAISED_BY_JMESPATH = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class TransformFailed(Exception):
    """A mapper or a script failed for a result."""


class Transform:
    """The mapper and the script for the results of one tool. All tools of a server share its script."""

    def __init__(self, *, mapper: Mapper | None = None, script: VRLScript | None = None) -> None:
        self._mapper, self._script = mapper, script

    @property
    def is_none(self) -> bool:
        """True if there is neither a mapper nor a script."""
        return self._mapper is None and self._script is None

    async def apply(self, result: dict[str, Any], *, tool_name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result with the outcomes in `_meta`; the same object if there are none."""
        added: dict[str, str] = {}
        if self._mapper:
            try:
                added[MAPPED] = self._mapper.apply(result)
            except TransformFailed as error:
                added[MAPPING_ERROR] = str(error)
        if self._script:
            try:
                event = {**result, "tool_name": tool_name, "parameters": dict(parameters)}
                added[SCRIPTED] = await self._script.run(event)
            except TransformFailed as error:
                added[SCRIPT_ERROR] = str(error)
        if not added:
            return result
        ours = {*((MAPPED, MAPPING_ERROR) if self._mapper else ()), *((SCRIPTED, SCRIPT_ERROR) if self._script else ())}
        meta = result.get("_meta")
        kept = {key: value for key, value in meta.items() if key not in ours} if isinstance(meta, dict) else {}
        return {**result, "_meta": {**kept, **added}}  # a server must not set our keys


class Mapper:
    """`ret_object_mapper`: an object of a fixed shape, with a JMESPath expression for each field."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Raises `ConfigError` for an expression that cannot be evaluated."""
        self._fields = {name: _compile(name, expression) for name, expression in fields.items()}

    def apply(self, result: Mapping[str, Any]) -> str:
        """Return the object as JSON; a field that is not found is null. Raises `TransformFailed`."""
        fields = {}
        for name, expression in self._fields.items():
            try:
                fields[name] = expression.search(result)
            except _RAISED_BY_JMESPATH as error:
                raise TransformFailed(f"ret_object_mapper.{name}: {error}"[:_LONGEST_FAULT]) from None
        try:
            return json.dumps(fields, ensure_ascii=False, allow_nan=False)
        except _RAISED_BY_JMESPATH:
            raise TransformFailed("ret_object_mapper: an expression finds something that is not JSON") from None


def _compile(name: str, expression: object) -> Any:
    if not isinstance(expression, str):
        raise ConfigError(f"ret_object_mapper.{name}: must be a JMESPath expression, such as content[0].text")
    try:
        compiled = jmespath.compile(expression)
    except _RAISED_BY_JMESPATH as error:
        raise ConfigError(f"ret_object_mapper.{name}: not a JMESPath expression: {error}") from None
    for called, arguments in _calls(compiled.parsed):
        if fault := _call_fault(called, arguments):
            raise ConfigError(f"ret_object_mapper.{name}: {called}(): {fault}")
    return compiled


def _calls(node: Any) -> Iterator[tuple[str, int]]:
    """Yield every function that an expression calls, with the number of arguments. JMESPath checks neither itself."""
    if node["type"] == "function_expression":
        yield node["value"], len(node["children"])
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _calls(child)


def _call_fault(called: str, arguments: int) -> str | None:
    known = Functions.FUNCTION_TABLE.get(called)
    if known is None:
        return "no such function"
    wanted = known["signature"]
    is_variadic = bool(wanted) and wanted[-1].get("variadic", False)
    if arguments < len(wanted) or (arguments > len(wanted) and not is_variadic):
        return f"takes {len(wanted)} arguments{' or more' if is_variadic else ''}, not {arguments}"
    return None


FORBIDDEN = frozenset(
    {
        "dns_lookup",
        "encode_proto",
        "get_env_var",
        "get_hostname",
        "http_request",
        "parse_etld",
        "parse_groks",
        "parse_proto",
        "reverse_dns",
        "validate_json_schema",
    }
)
"""Functions that reach beyond the result: the environment, files, the network."""

LARGEST_EVENT = 4 * 1024 * 1024
"""Bytes. A larger result could not be sent anyway (WIRE §6)."""

RUN_WITHIN, COMPILED_WITHIN = 1.0, 5.0  # seconds

_LONGEST_HEADLINE = 300
_HINT = re.compile(r"\s*=.*https?://")  # every diagnostic ends with links to manuals

_WORKER = worker_command(Path(processes.__file__).with_name("vrl_worker.py"))
_TOKEN = re.compile(
    r"""\#[^\n]*                                   # a comment
    | "(?:[^"\\]|\\.)*"?                           # a string
    | [rst]'(?:[^'\\]|\\.)*'?                      # a regular expression, raw string or time
    | -[0-9][0-9_]*(?:\.[0-9_]*)?                  # a number; one without a sign that letters follow is a name
    | [0-9][0-9_]*\.[0-9_]* | [0-9][0-9A-Za-z_@]*
    | (?P<name>[A-Za-z_@][0-9A-Za-z_@]*)(?P<call>[(!])?
    | .""",
    re.VERBOSE | re.DOTALL,
)


class VRLScript:
    """The script of one server, with a worker process that keeps running. The owner of the script closes it."""

    def __init__(self, source: str) -> None:
        """Raises `ConfigError` for a script that calls a forbidden function, or if VRL is not installed."""
        if calls := forbidden_calls(source):
            names = ", ".join(sorted(calls))
            raise ConfigError(f"vrl: must not call {names}: a script sees the result and nothing else")
        if find_spec("vrl_python") is None:
            raise ConfigError(f"vrl: scripts need the extra `vrl`: {install_command('vrl')}")
        self._source = source
        self._worker = Worker(_WORKER)

    async def compile(self) -> None:
        """Start the process and compile. Raises `ConfigError` for a script that does not compile."""
        try:
            status, outcome = _split(await self._worker.ask(_encode([self._source]), limit=COMPILED_WITHIN))
        except (WorkerDied, WorkerTooSlow) as error:
            raise ConfigError(f"vrl: compiling it {error}") from None
        if status != "ok":
            lines = [line for line in outcome.strip().splitlines() if not _HINT.match(line)]
            raise ConfigError("\n".join(("vrl: does not compile:", *lines)))

    async def run(self, event: dict[str, Any]) -> str:
        """Run the script on an event; return the changed event as JSON. Raises `TransformFailed`."""
        request = _encode([self._source, event])
        if len(request) > LARGEST_EVENT:
            raise TransformFailed(f"vrl: the result has {len(request)} bytes, more than {LARGEST_EVENT}")
        try:
            status, outcome = _split(await self._worker.ask(request, limit=RUN_WITHIN))
        except (WorkerDied, WorkerTooSlow) as error:
            raise TransformFailed(f"vrl: the script {error}") from None
        if status != "ok":
            raise TransformFailed(f"vrl: {_headline(outcome)}")
        return outcome

    async def close(self) -> None:
        """End the process. Another run would start a new one."""
        await self._worker.close()


def forbidden_calls(source: str) -> set[str]:
    """Return the forbidden functions that a script calls; their names in strings, comments and fields do not count.

    Tokens are read as VRL reads them: a function is a name with `(` or `!` directly after it.
    """
    return {token["name"] for token in _TOKEN.finditer(source) if token["call"] and token["name"] in FORBIDDEN}


def _split(answer: bytes) -> tuple[str, str]:
    status, _, outcome = answer.decode("utf-8", "replace").partition("\n")
    return status, outcome


def _headline(diagnostic: str) -> str:
    """Return the first line, `error[E000]: what happened`, without the code; the other lines show the source."""
    lines = [line.strip() for line in diagnostic.splitlines() if line.strip()]
    return re.sub(r"^error\[E\d+\]: ", "", lines[0])[:_LONGEST_HEADLINE] if lines else "failed"


def _encode(request: list[Any]) -> bytes:
    """Return JSON that VRL can read: half a surrogate pair becomes a question mark."""
    try:
        return orjson.dumps(request)
    except TypeError:
        pass
    try:
        return json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        raise TransformFailed("vrl: the result is not JSON") from None
