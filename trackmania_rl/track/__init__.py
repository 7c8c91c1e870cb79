"""Reference lines, and the virtual checkpoints made of them."""
