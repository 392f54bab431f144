"""Doctor's rules: each reads the survey of a machine and yields findings about what is set up wrong."""
