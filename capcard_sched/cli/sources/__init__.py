"""Inputs of the verbs that read a cluster: files, a recording, a live cluster, the memory of a cache."""
