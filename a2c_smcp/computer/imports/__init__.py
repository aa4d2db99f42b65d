"""Configurations of other programs: found, read, converted into ours; and ours exported for them."""
