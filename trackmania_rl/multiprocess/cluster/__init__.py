"""Collectors on the machines of a Ray cluster. Without `--cluster` nothing here is imported: it needs that extra."""
