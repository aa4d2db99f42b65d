"""Sandboxes of stdio servers, before they are entered: what is possible here, what is allowed, what was refused."""
