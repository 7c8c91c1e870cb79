"""The car and the world it touches, one tick after the other."""
