"""Checks of the machine and the configuration: `scripts/doctor.py` shows all of them, a run begins with some."""
