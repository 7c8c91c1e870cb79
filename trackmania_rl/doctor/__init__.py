"""Machine and configuration checks: `scripts/doctor.py` shows all, a run begins with some."""
