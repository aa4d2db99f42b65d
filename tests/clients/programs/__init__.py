"""MCP clients of others, each a program that does the same things with an office and prints what came of them.

Each gets a target as JSON, `{"url", "headers"}` or `{"command", "args"}`, and prints an object: the names of the tools,
the result of a call, the progress of one, a call that was cancelled, a question that was answered, a resource that
changed while it was subscribed to, and a prompt. They import nothing of this repository: most run in an environment of
their own.
"""
