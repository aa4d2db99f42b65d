"""Who may come in: authentication providers, API keys and JSON Web Tokens."""
