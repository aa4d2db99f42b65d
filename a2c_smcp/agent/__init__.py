"""The Agent: the program that uses the tools of computers."""

from __future__ import annotations

from a2c_smcp.agent.calls import CallStatus, EmitOptions
from a2c_smcp.agent.client import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.agent.desktops import AgentAuthProvider, ClientOptions
from a2c_smcp.agent.events import AgentEvents
from a2c_smcp.agent.reading.answers import ReadOptions
from a2c_smcp.endpoint import Credentials, Reconnect
from a2c_smcp.protocol.questions import Answer, Question

__all__ = [
    "AgentAuthProvider",
    "AgentEvents",
    "Answer",
    "AsyncSMCPAgentClient",
    "CallStatus",
    "ClientOptions",
    "Credentials",
    "EmitOptions",
    "Question",
    "ReadOptions",
    "Reconnect",
    "SMCPAgentClient",
]
