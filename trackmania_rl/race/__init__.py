"""What a race is: what is seen of it, what it earns, when it is cut off, and what it leaves behind."""
