"""The subcommands of scripts/tools/maps.py, one module each.

A module here has `add_parser(subparsers)`, which adds the command's parser and sets its default `run`: a function that
takes the parsed arguments, does the work, raises UserError for what the user can mend, and returns the exit code.
Modules whose names begin with an underscore are what several commands share.
"""
