"""The close of a session: PodGroup phases, conditions, queue statuses and events as intents."""
