"""The prompt of `a2c-smcp computer` on a terminal: a line for commands, below the output."""
