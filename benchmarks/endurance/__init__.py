"""What a run survives: processes killed and stopped, disks full and gone, memory over an hour, damaged files.

python -m benchmarks.endurance --output endurance                  # everything, some three hours
python -m benchmarks.endurance --output endurance --only kills     # one part; those measured before are kept

Each part starts trainings as users do, does something to them, and looks at what became of the run: a table for
docs/endurance.rst. All draws come from `--seed`.
"""
