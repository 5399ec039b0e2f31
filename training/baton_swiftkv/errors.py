"""The one exception that the command line turns into a message instead of a traceback."""


class UserError(Exception):
    """Input that can't be used: the text says what, where, and what to do."""
