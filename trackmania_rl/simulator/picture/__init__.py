"""Pictures of the simulated game."""
