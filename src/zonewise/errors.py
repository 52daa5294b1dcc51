"""Base of errors that a user can act on. The command line shows them as one line, without a traceback."""


class ZonewiseError(Exception):
    """Its text names the object, what was expected and what to do next."""

    exit_code = 1
    """1: what was asked about is not there, or something is wrong with it; 2: it can't be asked so."""


class UsageError(ZonewiseError):
    exit_code = 2
