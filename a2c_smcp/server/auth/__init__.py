"""Authentication of clients: providers, API keys and JSON Web Tokens."""
