"""A reinforcement-learning trainer for TrackMania Nations Forever and for the simulated game that ships with it."""
