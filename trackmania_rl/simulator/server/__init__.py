"""The simulated game as a server of the plugin's protocol."""
