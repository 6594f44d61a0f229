"""Renders Kubernetes objects and model records as terminal tables."""
