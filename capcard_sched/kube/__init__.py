"""The real cluster: a Kubernetes API server watched and written to. Imports the model only."""
