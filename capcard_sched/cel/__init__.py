"""Evaluates CEL expressions over values of Kubernetes, with bounded cost. Knows neither pods nor devices."""
