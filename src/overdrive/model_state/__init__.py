"""What techniques that act on models share: all that a call may read or change, trial calls, copies of contents."""
