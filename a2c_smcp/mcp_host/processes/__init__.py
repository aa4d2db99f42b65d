"""Child processes: how they are started, guarded and ended."""
