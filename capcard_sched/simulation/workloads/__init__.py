"""Stand-ins for the controllers of Kubernetes and Volcano: what turns a Job or a Deployment into pods and PodGroups."""
