"""Tables for people: renderings of Kubernetes objects and model records."""
