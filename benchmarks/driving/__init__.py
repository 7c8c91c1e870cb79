"""Driving benchmark: trainings on tracks, scored against the tracks' records."""
