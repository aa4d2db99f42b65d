"""The Server: the signalling hub between agents and computers."""

from a2c_smcp.server.app import SMCPApp, create_app
from a2c_smcp.server.auth import AuthenticationProvider, DefaultAuthenticationProvider, Principal
from a2c_smcp.server.directory import Directory, MemoryDirectory
from a2c_smcp.server.namespace import SMCPNamespace
from a2c_smcp.server.settings import Limits, Settings

__all__ = [
    "AuthenticationProvider",
    "DefaultAuthenticationProvider",
    "Directory",
    "Limits",
    "MemoryDirectory",
    "Principal",
    "SMCPApp",
    "SMCPNamespace",
    "Settings",
    "create_app",
]
