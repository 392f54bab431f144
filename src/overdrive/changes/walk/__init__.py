"""Following all that an object is made of, for its fingerprint: one class a kind of thing that is come upon."""
