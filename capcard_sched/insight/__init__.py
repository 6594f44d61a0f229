"""Explanations and trials of a cluster: one core with its state, whatever it was read from."""
