"""The base of every error that a person can act on: the command line shows it as one line, without a traceback."""


class ZonewiseError(Exception):
    """Its text names the object, what was expected and what to do next."""

    exit_code = 1
    """1: something is wrong with what was asked about; 2: with how it was asked."""


class UsageError(ZonewiseError):
    exit_code = 2
