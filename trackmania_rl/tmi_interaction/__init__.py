"""Client side of a game instance: launchers, protocol client and races. No torch."""
