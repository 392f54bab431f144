"""Finds the plan of a program: which duel is next, what proves a candidate the same, what was established."""
