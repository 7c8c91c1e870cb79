"""Client side for a game instance: launchers, protocol client and races. No torch."""
