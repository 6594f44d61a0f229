"""Indexes and counters that several plugins share."""
