"""Tracks: geometry, files and generation."""
