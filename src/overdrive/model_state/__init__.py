"""What techniques that act on models share: all that a call of a model may read or change, and calls made for trying."""
