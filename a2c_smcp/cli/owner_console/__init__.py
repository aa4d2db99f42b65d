"""The owner's console and webhook, on the command line."""
