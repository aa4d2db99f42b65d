"""A2C-SMCP, the Agent-to-Computer protocol."""

__all__ = ["__version__"]

__version__ = "1.0.0a1"
