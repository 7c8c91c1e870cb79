"""The channels over a Ray cluster. Nothing here is imported without `--cluster`: it needs the extra `cluster`."""
