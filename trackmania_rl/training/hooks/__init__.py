"""What the learner does at each point of torchrl's training loop, one hook for each thing; see `hook`."""
