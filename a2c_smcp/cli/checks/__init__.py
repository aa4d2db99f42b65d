"""The checks of `a2c-smcp doctor`. Each is a function from a `Situation` to its findings."""
