"""Subcommands of scripts/tools/maps.py, one module each; modules with a leading underscore are shared.

A module's docstring describes the command, its first line for the list. `add_arguments(parser)` adds its arguments.
`run(arguments)` returns the exit code and raises UserError for mistakes of the user.
"""
