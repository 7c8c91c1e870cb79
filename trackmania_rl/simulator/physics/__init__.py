"""Car physics and contacts with the world."""
