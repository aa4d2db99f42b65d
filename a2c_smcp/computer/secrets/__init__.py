"""Secrets stay home: they are masked in everything textual that leaves the Computer."""

from a2c_smcp.computer.secrets.config import literal_secrets, mask_config
from a2c_smcp.computer.secrets.logs import MaskFilter, masked_logs
from a2c_smcp.computer.secrets.mask import MASKED, SHORTEST, Mask

__all__ = ["MASKED", "SHORTEST", "Mask", "MaskFilter", "literal_secrets", "mask_config", "masked_logs"]
