"""What a trial records of its program for `overdrive profile`: the worker's side."""
