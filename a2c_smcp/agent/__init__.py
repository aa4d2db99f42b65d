"""The Agent: the program that uses the tools of computers."""

from __future__ import annotations

from a2c_smcp.agent.auth import AgentAuthProvider, Credentials
from a2c_smcp.agent.client import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.agent.types import AgentEvents

__all__ = ["AgentAuthProvider", "AgentEvents", "AsyncSMCPAgentClient", "Credentials", "SMCPAgentClient"]
