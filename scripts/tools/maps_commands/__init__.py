"""Subcommands of scripts/tools/maps.py, one module each; modules with a leading underscore are shared.

A module's docstring is the command's summary (first line) and description. `add_arguments(parser)` adds its arguments.
`run(arguments)` returns the exit code and raises UserError for mistakes of the user.
"""
