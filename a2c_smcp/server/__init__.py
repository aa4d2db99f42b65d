"""The Server: the signalling hub between agents and computers."""

from typing import TYPE_CHECKING, Any

from a2c_smcp.server.app import SMCPApp, create_app
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal
from a2c_smcp.server.auth.grants import SignIn
from a2c_smcp.server.cluster.memory import Directory, MemoryDirectory
from a2c_smcp.server.settings import Limits, Settings

if TYPE_CHECKING:
    from a2c_smcp.server.namespace import SMCPNamespace

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
    "SignIn",
    "create_app",
]


def __getattr__(name: str) -> Any:
    """`SMCPNamespace` needs python-socketio, which the Server itself does not."""
    if name == "SMCPNamespace":
        from a2c_smcp.server.namespace import SMCPNamespace

        return SMCPNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
