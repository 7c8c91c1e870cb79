"""Learner actions at each point in torchrl's training loop, one hook per task; see `hook`."""
