"""Configuration files: how they are read and watched, and which changes need the consent of the owner."""
