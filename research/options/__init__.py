"""What the options of the agent cost, and what they did to the driving."""
