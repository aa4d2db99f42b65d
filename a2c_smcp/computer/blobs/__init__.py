"""Large contents in chunks: what agents fetch from this Computer, and the files that they send to it."""
