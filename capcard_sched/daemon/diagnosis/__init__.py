"""Inspection of a running daemon and of its past: dumps, cache comparison, recordings, replay, log level."""
