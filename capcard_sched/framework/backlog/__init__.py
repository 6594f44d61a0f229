"""Waiting jobs that sessions skip: failed attempts, failed searches for victims, and what ends them."""
