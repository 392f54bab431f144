"""Whether what a program reads has changed: code, containers, arrays, files."""
