"""Converts cluster traces to scenarios of the simulator."""
