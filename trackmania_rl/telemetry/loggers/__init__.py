"""Where a run's figures, pictures and films go: tensorboard, CSV files, W&B, MLflow, Trackio, a user's own."""
