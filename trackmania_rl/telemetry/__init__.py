"""Terminal, loggers, race log, pictures and films of a run."""
