"""The Job (vcjob) controller: gangs of pods, their PodGroup, and what happens when members come and go."""
