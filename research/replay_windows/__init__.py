"""Simulated car beside human replays, a second at a time: the command is `scripts/tools/maps.py windows`.

The figures are in `research/replay_windows.rst`.
"""
