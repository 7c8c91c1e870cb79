"""The planner: a search for the fastest race of a track, which is what drivers are measured against."""
