"""The child's side of a trial, and of `overdrive run`: one session of a program under techniques, in its process."""
