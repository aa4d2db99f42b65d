"""The policy on the command line: its options, and the explanation of a decision."""
