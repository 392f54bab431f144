"""What goes between the ranks of a pool: measured from 1 KiB on, and held against what its links can carry."""
