"""Workloads as data, the benchmark that places them, and the plain scheduler it is compared with."""
