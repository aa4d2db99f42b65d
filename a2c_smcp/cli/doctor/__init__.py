"""The checks of `a2c-smcp doctor`."""
