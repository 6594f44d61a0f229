"""Diagnoses of jobs and figures of queues, from the state and the records of the last session."""
