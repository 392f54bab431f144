"""Finds the plan of a program: which duel to run next, what proves a candidate the same, what was established."""
