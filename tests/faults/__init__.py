"""The fault run: real processes under load, killed, paused and cut off, and an account of every call.

`python -m tests.faults --help`. What is checked is in `verdicts.py`, what is done to whom in `schedule.py`.
"""
