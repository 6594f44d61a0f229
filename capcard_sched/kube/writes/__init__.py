"""Writes to the API server: intents of the core become requests, bindings first. `ApiWriter` is the entry point."""
