"""What each command does, called with values that `overdrive.cli` has checked; nothing here reads a command line."""
