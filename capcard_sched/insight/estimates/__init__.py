"""Ends and starts of jobs, estimated from like jobs."""
