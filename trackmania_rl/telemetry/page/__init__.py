"""Live page: a web server for a run's folder and live feed, without torch, so that it is small beside a training."""
