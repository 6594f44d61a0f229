"""Preemption and reclaim: candidates, victim search, evictions on a statement, and nominations."""
