"""Pictures of what a driver expects, where it errs, and how it drives."""
