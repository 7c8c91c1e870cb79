"""Starting, finding and ending game instances, simulated or real."""
