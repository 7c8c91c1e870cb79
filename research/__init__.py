"""How we know, not what ships: searches for fast races, and what trainings with each option gave."""
