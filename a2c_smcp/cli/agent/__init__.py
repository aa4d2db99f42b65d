"""The work of the subcommands of `a2c-smcp agent` in an office."""
