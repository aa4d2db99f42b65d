"""What `a2c-smcp server` runs: one process, or several workers on one port, with the store they share."""
