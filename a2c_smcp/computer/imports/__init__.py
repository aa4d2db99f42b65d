"""Configurations that other programs have: found, read, converted into ours, and back."""
