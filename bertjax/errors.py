"""What a user did that bertjax cannot do, said in one line."""


class UserError(Exception):
    """Bad input: what is wrong, the value, the remedy, in one line."""

    exit_code = 2


class RunFailed(UserError):
    """A run that had begun well cannot go on; what it saved stays."""

    exit_code = 1


# Of a run that was asked to stop and saved its state (EX_TEMPFAIL): a launcher gives the same command again.
STOPPED = 75


class Busy(UserError):
    """Another process holds what this one needs; the same command may do later (EX_TEMPFAIL)."""

    exit_code = STOPPED
