"""What `a2c-smcp doctor` looks at. Each check is a function from the situation to its findings."""
