"""Admission webhooks: defaults and checks of vcjobs, Queues, PodGroups and pods before the API server stores them."""
