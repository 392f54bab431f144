"""Sentinels: now and then a step of a run is made again in a forked process as it would be without the plan."""
