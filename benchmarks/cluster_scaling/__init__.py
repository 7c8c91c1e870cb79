"""What a learner with collectors on many machines can do, reckoned and simulated from measured rates."""
