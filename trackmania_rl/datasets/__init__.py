"""Races in files that others can read: Minari data sets, Farama's format for offline reinforcement learning."""
