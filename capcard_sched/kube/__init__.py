"""The Kubernetes backend: informers, API writes and leader election. Imports the model only."""
