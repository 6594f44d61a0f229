"""Filtering and scoring of nodes per pod signature, cached by node class or by node."""
