"""Subcommands of scripts/tools/maps.py, one module each; modules whose names begin with an underscore are shared.

The first line of a module's docstring is the command's summary, the rest its description. `add_arguments(parser)` adds
its arguments. `run(arguments)` returns the exit code and raises UserError for mistakes of the user.
"""
