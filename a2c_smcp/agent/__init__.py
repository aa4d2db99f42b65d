"""The Agent: the program that uses the tools of computers."""
