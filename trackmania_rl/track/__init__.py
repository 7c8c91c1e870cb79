"""Reference lines, and the virtual checkpoints made from them."""
