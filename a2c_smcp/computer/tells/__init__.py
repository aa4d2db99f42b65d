"""Tells: notices from this computer to one agent (WIRE §9)."""
