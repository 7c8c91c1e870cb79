"""Whether this machine can do what a configuration asks of it: checks, each of which says what it found.

`scripts/doctor.py` shows all findings; a run begins with those checks whose problems would end it anyway.
"""
