"""The Computer's connection to a Server."""

from a2c_smcp.computer.socketio.client import SMCPComputerClient

__all__ = ["SMCPComputerClient"]
