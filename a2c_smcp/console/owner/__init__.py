"""The console of a computer's owner."""
