"""The parts of `a2c-smcp bridge`."""
