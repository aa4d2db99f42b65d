"""What `a2c-smcp computer` opens on a terminal: a line to type commands on, below everything that happens."""
