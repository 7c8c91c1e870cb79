"""What the learner remembers: columnar storage of races, and experiences as views into it."""
