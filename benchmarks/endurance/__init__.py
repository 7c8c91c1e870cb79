"""Trainings that are disturbed, and their state afterwards; see docs/endurance.rst.

python -m benchmarks.endurance --output endurance                   # everything, about three hours
python -m benchmarks.endurance --output endurance --only shortages  # one part; earlier results are kept
"""
