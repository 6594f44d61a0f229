"""Placement of a job: gang by gang, and within a HyperNode for a job with a hard network topology."""
