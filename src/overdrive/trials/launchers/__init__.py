"""Launchers: how the processes of a trial are started and reached."""
