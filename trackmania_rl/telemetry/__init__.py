"""What a user sees while a run is on: terminal, tensorboard, races.jsonl, pictures."""
