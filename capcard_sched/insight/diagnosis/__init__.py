"""Diagnoses: of one object of a name, and the first sentences of those of all waiting jobs."""
