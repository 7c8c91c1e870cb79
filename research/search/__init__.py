"""A search over settings with Ray Tune: which trainings drive best, by the score of the driving benchmark."""
