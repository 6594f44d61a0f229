"""The admission webhooks as a service: certificates, HTTPS server, watch of queues and namespaces."""
