"""Shipped scheduler-confs and examples, read as package resources."""
