"""The one error that bad input raises; the command line prints its sentence and exits with 2."""


class BadInput(ValueError):
    """What is wrong, where, and what to do, in one sentence."""


class TrainingStopped(RuntimeError):
    """A guard that was asked to has stopped the training: what it saw, at which step, and whether the weights have changed."""
