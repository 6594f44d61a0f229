"""Stand-ins for kube-controller-manager, and the runner of our own controllers."""
