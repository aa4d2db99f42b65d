"""Observation of a Server: log, audit file, metrics and spans."""
