"""Finds the plan of a program: which duel to fight next, what proves a candidate the same, what was established."""
