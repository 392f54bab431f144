"""What is set up wrong on a machine: small rules, each of which reads the survey and gives findings."""
