"""The job controller: gangs of pods, their PodGroup, and the actions that follow from events, policies and commands."""
