"""Simulated game as a server with the plugin protocol."""
