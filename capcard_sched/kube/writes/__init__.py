"""The writing half of the backend: what the core wants becomes requests, binds first. `writer.Effects` is the door."""
