"""The console of a Server's operator."""
