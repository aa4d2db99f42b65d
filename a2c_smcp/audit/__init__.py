"""The audit: who is told what happens, and files that record it so that a change is seen."""
