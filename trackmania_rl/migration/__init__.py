"""Runs of other programs as runs of this one, and back."""
