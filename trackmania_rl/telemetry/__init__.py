"""What a user sees while a run is on: terminal, loggers, races.jsonl, pictures."""
