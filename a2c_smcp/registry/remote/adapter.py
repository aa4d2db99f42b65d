"""RemoteMCPAdapter: one tool of an MCP server with the interface of a local tool (001 §5)."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from pydantic_core import PydanticSerializationError, to_jsonable_python

from a2c_smcp.loops import is_in_loop
from a2c_smcp.registry.calls.caller import tool_caller
from a2c_smcp.registry.calls.progress import progress_listener
from a2c_smcp.registry.parameters import InvalidArguments
from a2c_smcp.registry.remote.servers import ServerAddress, ServerConfig, ServerHandle, SharedServers, servers
from a2c_smcp.registry.results import RawResult, note_result, value_of

__all__ = ["CALL_TIMEOUT", "RemoteMCPAdapter"]

CALL_TIMEOUT = 60.0  # seconds


class RemoteMCPAdapter:
    """One tool of an MCP server, with the interface of a local one (001 §5).

    The first call starts the server; it is started again when it ends, and shared by all adapters that name it. `call`
    blocks and works in any thread; in an event loop, `await acall(…)`. With `raw`, results are MCP's own.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
        server_cmd: Sequence[str] | None = None,
        *,
        config: ServerConfig | ServerHandle | None = None,
        tool: str | None = None,
        timeout: float = CALL_TIMEOUT,
        raw: bool = False,
    ) -> None:
        """`tool` is the server's name for the tool, if that is another one. Several adapters can share a handle.

        Raises `ConfigError`, or `TypeError` without a server.
        """
        self._handle = _handle(server_cmd, config)
        self.name = name
        self.description = description
        self.input_schema = input_schema or {}
        self.output_schema: dict[str, Any] | None = None
        self.origin = self._handle.address.config.name
        self.tags: tuple[str, ...] = ()
        self.trusts_hints = True
        self.read_only: bool | None = None
        self.idempotent: bool | None = None
        self.meta: dict[str, Any] = {}
        self.tool = tool or name
        self._timeout = timeout
        self._raw = raw

    def __repr__(self) -> str:
        return f"RemoteMCPAdapter({self.name!r}, origin={self.origin!r})"

    def call(self, arguments: dict[str, Any]) -> Any:
        """Returns the tool's answer as a Python value: structured content, else text, else content blocks.

        Raises `ToolFailed` if the tool failed, and `LoopIsRunning`, `InvalidArguments`, `UnknownTool`, `CallTimeout`
        or a `ServerFailure` if it could not be called.
        """
        here = servers()
        return self._value(here.background.wait(self._request(here, arguments), "await acall instead of call"))

    async def acall(self, arguments: dict[str, Any]) -> Any:
        """As `call`, from any event loop, without blocking it. Cancelling it cancels the call at the server."""
        here = servers()
        return self._value(await here.background.done(self._request(here, arguments)))

    def close(self) -> None:
        """Stops using the server. The last user's `close` stops it; inside an event loop this does not wait for it."""
        here = servers()
        ending = here.background.submit(here.release(self._handle))
        if not is_in_loop():
            ending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        here = servers()
        await here.background.done(here.release(self._handle))

    def _request(self, here: SharedServers, arguments: dict[str, Any]) -> Coroutine[Any, Any, dict[str, Any]]:
        """Listener and caller belong to this context, not to the loop in which the coroutine will run."""
        plain, listener, caller = _plain_json(arguments), progress_listener(), tool_caller()
        return here.call(self._handle, self.tool, plain, self._timeout, listener, caller)

    def _value(self, result: dict[str, Any]) -> Any:
        note_result(self, result)
        return RawResult(result) if self._raw else value_of(result)


def _handle(server_cmd: Sequence[str] | None, config: ServerConfig | ServerHandle | None) -> ServerHandle:
    if server_cmd is not None and config is None:
        return ServerHandle(ServerAddress.of_command(server_cmd))
    if config is None or server_cmd is not None:
        raise TypeError("an adapter needs either server_cmd or config")
    return config if isinstance(config, ServerHandle) else ServerHandle(ServerAddress(config))


def _plain_json(arguments: object) -> dict[str, Any]:
    """A copy made of JSON types, which the caller cannot change any more."""
    try:
        plain = to_jsonable_python(arguments, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise InvalidArguments.at([{"path": "", "message": "not JSON"}]) from None
    if not isinstance(plain, dict):
        raise InvalidArguments.at([{"path": "", "message": "not an object"}])
    return plain
