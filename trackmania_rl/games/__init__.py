"""Simulated games in the collector's own process: many races stepped together, without a socket. No torch in here."""
