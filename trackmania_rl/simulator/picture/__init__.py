"""The picture of the simulated game."""
