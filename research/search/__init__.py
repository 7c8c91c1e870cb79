"""Search over settings with Ray Tune, by the score of the driving benchmark."""
