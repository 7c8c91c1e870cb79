"""The client side of a game instance: launching it, talking to it, playing races on it. No torch in here."""
