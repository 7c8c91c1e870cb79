"""The live page: a small web server beside a running or a finished run. It reads the run's files and its live feed.

Nothing here imports torch or numba: the page shall be light beside a training. What needs them runs for a moment in a
process of its own (`helpers`).
"""
