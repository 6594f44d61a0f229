"""Trials on copies of a state: changes, sessions until nothing happens, and what is different then."""
