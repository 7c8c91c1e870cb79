"""Collecting and learning without processes: everything here runs, and is tested, in one process."""
