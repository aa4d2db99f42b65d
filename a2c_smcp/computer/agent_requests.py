"""The part of `Computer` that answers agents. Whatever it returns is masked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from a2c_smcp.computer.approval import Approvals, Caller
from a2c_smcp.computer.blobs.offers import Blobs
from a2c_smcp.computer.blobs.uploads import Uploads
from a2c_smcp.computer.calls.delivery import ResultDelivery
from a2c_smcp.computer.calls.execution import Execution
from a2c_smcp.computer.calls.in_flight import Outcome
from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.calls.reports import OnProgress
from a2c_smcp.computer.desktop.read import read_desktop
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.observation import ComputerObservation
from a2c_smcp.computer.policy.gate import PolicyGate
from a2c_smcp.computer.questions.open_questions import OpenQuestions
from a2c_smcp.computer.reading.requests import ReadAnswers
from a2c_smcp.computer.secrets import CONFIG, SERVER, Mask, mask_config
from a2c_smcp.computer.server_logs import ServerLogs
from a2c_smcp.computer.skills.skills import Skills
from a2c_smcp.computer.tools.catalogue import Catalogue
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.config.servers import MCPServerInput, input_to_wire, to_wire
from a2c_smcp.protocol.codec import Written
from a2c_smcp.smcp import GetComputerConfigRet
from a2c_smcp.types import TOOL_NAME, Desktop

__all__ = ["AgentRequests"]


class AgentRequests:
    """What agents ask for. `Computer` sets the attributes."""

    mask: Mask
    observation: ComputerObservation
    approvals: Approvals
    questions: OpenQuestions
    server_logs: ServerLogs
    blobs: Blobs
    skills: Skills
    reading: ReadAnswers
    uploads: Uploads
    gate: PolicyGate | None
    _catalogue: Catalogue
    _delivery: ResultDelivery
    _execution: Execution
    _definitions: dict[str, MCPServerInput]
    _hosting: Hosting | None

    def get_tools(self) -> list[OwnedTool]:
        """The tools as agents see them, each with its server. MCP servers are not asked."""
        return self._catalogue.shown(self.mask)

    def tools_for(self, agent: str, req_id: str, office: str = "") -> Written:
        """The answer to an agent's request for the tools, as JSON text already, with the tools it need not ask for."""
        routes = self._catalogue.routes
        if self.gate is None:
            return self._catalogue.written(self.mask, req_id, self.approvals.approved(agent, routes))
        caller = Caller(office, agent)
        outlooks = self.gate.outlooks(caller, routes)
        approved = self.approvals.approved_by_policy(caller, routes, outlooks)
        return self._catalogue.written(self.mask, req_id, approved, outlooks)

    def get_config(self, *, labelled: bool = False) -> GetComputerConfigRet:
        """The configuration as agents may see it: placeholders stay, literal secrets are masked.

        The options of a pick list have labels if the owner has given them some, or if `labelled`.
        """
        inputs = [input_to_wire(each, labelled=labelled) for each in self._definitions.values()]
        ids = self._host.bundle_ids
        servers = {
            name: {**to_wire(each), "bundle_id": ids.of(name), "secrets": each.secrets}
            for name, each in self._host.configs.items()
        }
        config: dict[str, Any] = mask_config({"inputs": inputs, "servers": servers})
        config["servers"] = {name: self.mask.data(each, SERVER, name) for name, each in config["servers"].items()}
        return cast("GetComputerConfigRet", self.mask.data(config, CONFIG))

    async def get_desktop(self, size: int | None = None, window: str | None = None) -> list[Desktop]:
        """The windows of all servers as texts, the most important first, at most `size` (004).

        `window` selects one by its URI, as agents are shown it.
        """
        windows = self._host.windows()
        if window is not None:
            windows = [each for each in windows if window in (each.uri, self.mask.uri(each.uri, each.server))]
        desktops = await read_desktop(windows, size, list(self._execution.history), self._host.read)
        owners = [(each.uri, each.server) for each in windows]
        return [self._shown(desktop, owners) for desktop in desktops]

    async def execute_tool(
        self,
        caller: Caller,
        req_id: str,
        name: TOOL_NAME,
        params: dict[str, Any],
        timeout: float,
        on_progress: OnProgress | None = None,
        options: CallOptions | None = None,
    ) -> dict[str, Any]:
        """Run a tool for an agent. Returns the result as it is sent to the agent; errors are results, too.

        `on_progress` is called with progress, total and message, as the MCP server reports them; it may be async. For a
        duplicate of a running call it is called from then on.
        """
        call = IncomingCall(caller, req_id, name, params, timeout, options)
        return await self._execution.result_of(call, on_progress)

    def start_tool(self, call: IncomingCall, then: Callable[[dict[str, Any]], None]) -> None:
        """Run a tool in the background, and call `then` with the result."""

        def settle(outcome: Outcome) -> None:
            then(self._execution.failed(call, outcome) if isinstance(outcome, SMCPError) else outcome)

        try:
            self._execution.start(call, settle)
        except SMCPError as error:
            settle(error)

    def fitting(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or, if it is too large to be sent, one that says so."""
        return self._delivery.fitting(answer)

    def cancel(self, agent: str, req_id: str, office: str = "") -> None:
        """End a call of this agent, also if it comes after its cancel. `office` is where it was cancelled."""
        self._execution.cancel(agent, req_id, office)

    def recording(self, office: str, journal: Journal) -> AbstractContextManager[None]:
        """Inside the `with` block, calls of this office are written into this journal before their tools run."""
        return self._execution.calls.recording(office, journal)

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drop the results kept for an agent that has left, or for an office that this computer has left."""
        self._execution.forget(office, agent)
        self.blobs.forget(office, agent)
        self.uploads.forget(office, agent)
        self.questions.forget(office, agent)
        self.end_standing(office, agent)

    def end_standing(self, office: str, agent: str | None = None) -> None:
        """Stop telling an agent that has no seat any more what it has subscribed to; or all agents of an office."""
        self.server_logs.end(office, agent)
        self.reading.subscriptions.end(office, agent)

    def keep_only(self, office: str, agent: str) -> None:
        """Drop the results kept for other agents: this one has entered the office."""
        self._execution.keep_only(office, agent)
        self.blobs.keep_only(office, agent)
        self.uploads.keep_only(office, agent)
        self.questions.keep_only(office, agent)
        self.server_logs.keep_only(office, agent)
        self.reading.subscriptions.keep_only(office, agent)

    async def watch_logs(self, caller: Caller, server: str | None, level: str) -> None:
        """Tell an agent the messages of a server, or of all, of this level and above, as long as it is there.

        It lapses after fifteen minutes unless the agent asks again. Raises `ServerNotFound` or `BadRequest`.
        """
        self.server_logs.watch(caller, server and self._host.known(server), level)
        await self._host.set_log_levels()

    # Inside

    @property
    def _host(self) -> Hosting:
        if self._hosting is None:
            raise RuntimeError("the computer is not running: use `async with computer:`")
        return self._hosting

    def _shown(self, desktop: Desktop, owners: list[tuple[str, str]]) -> Desktop:
        """A window without the secrets of all servers that list its URI: it may be of any of them."""
        listed, blank, text = desktop.partition("\n\n")
        uri = listed
        for server in [server for each, server in owners if each == listed]:
            uri, text = self.mask.uri(uri, server), self.mask.text(text, server)
        return uri + blank + text
