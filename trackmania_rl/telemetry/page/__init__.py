"""Live page: a web server of a run's folder and its live feed, without torch, so that it is small beside a training."""
