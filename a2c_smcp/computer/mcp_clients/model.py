"""The configuration models at the path of the specification. They are defined in `a2c_smcp.mcp_host.config`."""

from a2c_smcp.mcp_host.config import servers
from a2c_smcp.mcp_host.config.servers import *  # noqa: F403

__all__ = servers.__all__
