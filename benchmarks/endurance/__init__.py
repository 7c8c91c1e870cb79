"""Trainings that are disturbed, and their state afterwards."""
