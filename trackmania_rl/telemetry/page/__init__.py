"""Live page: a web server for a run's folder and live feed, without torch, so it is small beside a training."""
