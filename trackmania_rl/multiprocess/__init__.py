"""The learner and the collectors: queue-free cores, and the thin processes around them."""
