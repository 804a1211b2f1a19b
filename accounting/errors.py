"""Mistakes that a person can mend, told apart from defects of the program."""


class UserError(ValueError):
    """A value, file or wish that cannot be used; the message says what to change.

    The command line prints it as one sentence. Any other exception is a defect and keeps its trace.
    """
