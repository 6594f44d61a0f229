"""Calls webhooks over HTTP, for plugins that get the port from the session."""
