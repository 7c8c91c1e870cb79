"""Terminal, loggers, race log, pictures and films for a run."""
