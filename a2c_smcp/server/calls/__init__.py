"""Requests in flight: their routes, deadlines, duplicates, cancels and kept answers."""
