"""Shared types: resources, cards, tasks, jobs, queues, nodes, reasons, deltas and intents."""
