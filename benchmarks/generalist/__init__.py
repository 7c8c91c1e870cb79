"""How well one driver drives tracks that it has never seen."""
