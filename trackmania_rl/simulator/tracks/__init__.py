"""Tracks: their geometry, their files, and how new ones are made."""
