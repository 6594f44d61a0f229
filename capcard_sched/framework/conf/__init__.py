"""The scheduler-conf: parsing, checks, and the registry of plugins and actions."""
