"""Secrets: which they are, and how they are masked in every text that leaves the Computer."""

from a2c_smcp.computer.secrets.config import mask_config, secrets_in, secrets_of
from a2c_smcp.computer.secrets.logs import MaskFilter, masked_logs
from a2c_smcp.computer.secrets.mask import MASKED, NO_SERVER, SHORTEST, Mask
from a2c_smcp.computer.secrets.messages import ANSWER, ARGUMENTS, CONFIG, READ, SERVER, SKILL, TOOL

__all__ = [
    "ANSWER",
    "ARGUMENTS",
    "CONFIG",
    "MASKED",
    "NO_SERVER",
    "READ",
    "SERVER",
    "SHORTEST",
    "SKILL",
    "TOOL",
    "Mask",
    "MaskFilter",
    "mask_config",
    "masked_logs",
    "secrets_in",
    "secrets_of",
]
