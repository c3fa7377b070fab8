"""The one error a user is meant to see: one line that says what is wrong and what to do about it."""


class UserError(Exception):
    """Something the user can mend. The command line prints it on one line and exits with code 2."""
