"""Inputs: the values behind `${input:id}` in server configurations."""
