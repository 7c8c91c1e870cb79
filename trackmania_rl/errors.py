"""Errors that are shown as they are, without a traceback, since their text says all there is to know."""


class PlainError(Exception):
    """An error that commands print in one line, and exit with 1 (`trackmania_rl.command_line`)."""


class UserError(PlainError):
    """Something outside the program is wrong that a user can mend: a setting, a file, a port, the disk.

    The text is one line that names the thing, what is wrong with it and what to do.
    """


def one_line(error: Exception, most_characters: int = 300) -> str:
    """The beginning of another library's error text, which may span many lines, as part of one of ours."""
    return " ".join(str(error).split())[:most_characters]
