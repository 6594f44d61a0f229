"""Signals of a running daemon: metrics, logs, health endpoints."""
