"""Secrets: which they are, and how they are masked in every text that leaves the Computer."""
