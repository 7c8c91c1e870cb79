"""The simulated game as a program that speaks the plugin's protocol."""
