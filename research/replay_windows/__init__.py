"""Simulated car beside human replays: `windows` drives short stretches, `tracker` follows a whole replay.

`scripts/tools/maps.py windows` and `follow` are the commands. The figures are in `research/replay_windows.rst`.
"""
