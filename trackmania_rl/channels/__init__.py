"""What travels between collectors and learner: races one way, the run's state the other."""
