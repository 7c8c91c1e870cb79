"""Live page: a web server beside a running or a finished run. It reads the run's folder and its live feed.

Nothing here imports torch, so that the page is small beside a training. What needs torch runs in a process of its own.
"""
