"""What is copied into the folder of an export, as it is: `checks.py`, and as `run.py` the target's own file."""
