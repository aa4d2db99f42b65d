"""Secrets stay home: they are masked in everything textual that leaves the Computer."""

from a2c_smcp.computer.secrets.config import literal_secrets, mask_config
from a2c_smcp.computer.secrets.logs import MaskFilter, masked_logs
from a2c_smcp.computer.secrets.mask import MASKED, SHORTEST, Mask
from a2c_smcp.computer.secrets.places import ANSWER, ARGUMENTS, CONFIG, TOOL

__all__ = [
    "ANSWER",
    "ARGUMENTS",
    "CONFIG",
    "MASKED",
    "SHORTEST",
    "TOOL",
    "Mask",
    "MaskFilter",
    "literal_secrets",
    "mask_config",
    "masked_logs",
]
