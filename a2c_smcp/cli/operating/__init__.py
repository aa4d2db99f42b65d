"""What commands for operators share: the interface of a Server, and how its answers are shown."""
