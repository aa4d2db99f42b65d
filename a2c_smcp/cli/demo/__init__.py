"""What `a2c-smcp demo` shows: steps on one machine, and a cluster of three nodes."""
