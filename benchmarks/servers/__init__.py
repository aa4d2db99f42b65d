"""Who is measured, each a program that says `listening on URL` and serves until it is ended."""
