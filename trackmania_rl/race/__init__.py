"""The race: observation, rewards, cut-offs, zones and results."""
