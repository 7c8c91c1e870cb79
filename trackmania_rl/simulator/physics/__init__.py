"""Physics of the car and its contacts with the world."""
