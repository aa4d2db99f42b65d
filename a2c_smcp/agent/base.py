"""What the async and the blocking client of an agent share: how they are made, and what needs no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING

from a2c_smcp.agent.blobs import MAX_RESULT
from a2c_smcp.agent.events import AgentEvents
from a2c_smcp.agent.flows import Flows
from a2c_smcp.agent.questions import OnQuestion
from a2c_smcp.agent.types import AgentAuthProvider, DeviceOptions
from a2c_smcp.device_events import Sealing
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials, Endpoint, Reconnect
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.types import Desktop

if TYPE_CHECKING:  # it needs the extra `devices`
    from a2c_smcp.devices.identity import Identity

__all__ = ["AgentBase"]


class AgentBase(AgentEvents):
    """What both clients share: construction, and what needs no waiting."""

    def __init__(
        self,
        name: str,
        *,
        url: str = "http://127.0.0.1:7000",
        office: str | Iterable[str] | None = None,
        api_key: str | None = None,
        auth: AgentAuthProvider | None = None,
        event_handler: object | None = None,
        registry: MCPRegistry | None = None,
        ssl: SSLContext | None = None,
        proxy: str | None = None,
        reconnect: Reconnect | None = None,
        trusted_computers: Iterable[str] = (),
        on_question: OnQuestion | None = None,
        max_result: int = MAX_RESULT,
        list_resources: bool = True,
        instance: str | None = None,
        e2e: Sealing = "off",
        verify: bool = False,
        identity: Identity | None = None,
        state_folder: Path | None = None,
        origin: str | None = None,
    ) -> None:
        """Does not connect yet. Raises `ConfigError` for an invalid URL.

        `office` is one office or several; the default is an office with the agent's own name (003), `[]` is no office.
        `auth` supplies credentials where an `api_key` is not enough. `event_handler` is any object with some of the
        methods of `AgentEvents`. The tools of all computers appear in `registry`, beside those already in it. The tags
        and hints of tools of `trusted_computers` count for the registry's policy and retries; those of other computers
        are only shown. `on_question` answers what MCP servers ask during calls, also those of the registry; a call may
        have its own (see `emit_tool_call`). One answer may bring at most `max_result` bytes of large contents into
        memory. The registry shows the resources and prompts of computers, too, unless `list_resources` is false.
        `instance` is a secret of 16 to 128 characters that outlives the process: the next one that has it takes over
        the seats of one that was killed. Keep it in a private file, and use it in one process at a time.

        `e2e` says which computers are sent sealed requests, so that the Server cannot read them: `"off"`; `"prefer"`,
        those that can open them, and then always; `"require"`, only these, and only those that were trusted beforehand
        (`a2c-smcp device trust`). `verify`: answers must be signed by the device that a computer is known by. Both need
        the extra `devices`. The keys of this agent are kept in the keyring, or in `state_folder`, and made on first
        use, unless `identity` is given. An `api_key` that is bound to a device is proved with them. Devices are known
        under the `origin` of the Server, which is that of `url` unless this is only another way to it.
        """
        self.name = name
        self.registry = MCPRegistry() if registry is None else registry
        self._offices = [name if office is None else office] if office is None or isinstance(office, str) else [*office]
        credentials = auth.credentials if auth else partial(Credentials.of_key, api_key)
        prover = Prover.of("agent", url, identity, state_folder)
        endpoint = Endpoint(url=url, credentials=credentials, ssl=ssl, proxy=proxy, prover=prover)
        listeners = [self] if event_handler is None else [self, event_handler]
        trusted = frozenset(trusted_computers)
        self._flows = Flows(
            name,
            endpoint,
            self.registry,
            listeners,
            reconnect or Reconnect(),
            trusted,
            on_question,
            max_result,
            instance,
            DeviceOptions(e2e, verify, identity, state_folder, origin or endpoint.origin)
            if e2e != "off" or verify
            else None,
        )
        self._reading, self._skills = self._flows.reading, self._flows.skills
        self._reading.registered.is_wanted = list_resources

    @property
    def offices(self) -> list[str]:
        """The offices that the agent has joined, also while it reconnects."""
        return list(self._flows.connection.seats)

    @property
    def computers(self) -> list[str]:
        """The computers in these offices, as `office/computer`."""
        return [str(seat) for seat in self._flows.toolbox.seats()]

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._flows.connection.current is not None

    def listen(self, event_handler: object) -> Callable[[], None]:
        """Have the methods of `AgentEvents` that this object has called, too. Returns how to stop that."""
        return self._flows.listeners.add(event_handler)

    def desktop(self, computer: str, *, office: str | None = None) -> list[Desktop] | None:
        """The latest desktop of a computer, without asking for it; `None` before the first `get_desktop`.

        After that it is kept current. Raises `ComputerNotFound`, or `AmbiguousComputer` without an `office`.
        """
        return self._flows.latest_desktop(computer, office)
