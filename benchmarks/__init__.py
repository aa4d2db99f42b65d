"""What things cost here, and beside it what they cost elsewhere: `make bench`, or `python -m benchmarks.<name>`."""
