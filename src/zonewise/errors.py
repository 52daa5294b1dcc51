"""The base of every error that a person can act on: the command line shows it as one line, without a traceback."""


class ZonewiseError(Exception):
    """Its text names the object, what was expected and what to do next."""

    exit_code = 1
    """1: what was asked about is not there, or something is wrong with it; 2: it can't be asked so."""


class UsageError(ZonewiseError):
    exit_code = 2
