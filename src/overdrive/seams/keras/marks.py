"""By what our own doings in the program's graphs and functions are known. Imports nothing."""

SCOPE = "overdrive"  # of our own operations in the program's graphs
TRAINS = "overdrive_trains"  # set on functions in whose graphs an optimizer is applied
WRITES = "overdrive_writes"  # set on functions into whose graphs we have put operations that write
