"""The vocabulary every other room shares: resources, cards, tasks, jobs, queues, nodes, reasons, deltas and intents."""
