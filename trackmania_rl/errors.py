"""The one kind of error that a user can mend: its text is shown as it is, without a traceback."""


class UserError(Exception):
    """Something outside the program is wrong: a setting, a file, a port, the disk.

    The text is one line that names the thing, what is wrong with it and what to do. Scripts print it and exit with 1.
    """
