"""What the subcommands of `a2c-smcp agent` do in an office."""
