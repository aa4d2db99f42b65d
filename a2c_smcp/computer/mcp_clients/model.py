"""The configuration models at the path, and by the names, of the specification.

They are defined in `a2c_smcp.mcp_host.config`.
"""

from a2c_smcp.mcp_host.config import servers
from a2c_smcp.mcp_host.config.servers import *  # noqa: F403

BaseMCPServerConfig = servers.BaseServerConfig
MCPServerStdioConfig, MCPServerStdioParameters = servers.StdioConfig, servers.StdioParameters
MCPServerStreamableHttpConfig = servers.StreamableConfig
MCPServerStreamableHttpParameters = servers.StreamableParameters
MCPSSEConfig, MCPSSEParameters = servers.SSEConfig, servers.SSEParameters

__all__ = [
    *servers.__all__,
    "BaseMCPServerConfig",
    "MCPSSEConfig",
    "MCPSSEParameters",
    "MCPServerStdioConfig",
    "MCPServerStdioParameters",
    "MCPServerStreamableHttpConfig",
    "MCPServerStreamableHttpParameters",
]
