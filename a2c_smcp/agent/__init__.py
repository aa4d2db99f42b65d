"""The Agent: the program that uses the tools of computers."""

from __future__ import annotations

from a2c_smcp.agent.client import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.agent.events import AgentEvents
from a2c_smcp.agent.types import AgentAuthProvider
from a2c_smcp.endpoint import Credentials, Reconnect

__all__ = ["AgentAuthProvider", "AgentEvents", "AsyncSMCPAgentClient", "Credentials", "Reconnect", "SMCPAgentClient"]
