"""Simulated game pictures."""
