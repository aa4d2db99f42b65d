"""The Desktop: windows of many MCP servers as one view."""

from a2c_smcp.computer.desktop.organize import Window, organize_desktop
from a2c_smcp.protocol.window_uri import WindowURI

__all__ = ["Window", "WindowURI", "organize_desktop"]
