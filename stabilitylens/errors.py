"""The one error that bad input raises; the command line prints its sentence and exits with 2."""


class BadInput(ValueError):
    """What is wrong, where, and what to do, in one sentence."""
