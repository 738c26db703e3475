"""Typed errors. Each message is one line and carries the numbers; the command line prints it and exits."""


class StrataError(Exception):
    """Base of every error that a user, a file or a machine limit can cause."""

    exit_code = 1


class UsageError(StrataError):
    """An option or argument that makes no sense; says what was given and what is allowed."""

    exit_code = 2


class ModelFileError(StrataError):
    """A model file that cannot be used: missing, truncated, malformed or inconsistent."""


class UnsupportedError(StrataError):
    """A valid request that this build cannot serve; names what is supported."""


class ContextLengthError(StrataError):
    """More tokens than the model or the plan can hold; says how many and the limit."""


class MemoryLimitError(StrataError):
    """Memory that the machine or an option does not grant; says what is needed, what there is, what to change."""


class BusyError(StrataError):
    """A limit on how much is served at once was met; says which, and the same request may be sent again later."""


class FaultError(StrataError):
    """A step that went wrong while running (a non-finite value, a lost worker); the step leaves no trace."""


class DeviceError(StrataError):
    """A GPU that is missing, too old, full, lost, or refuses a kernel; with the compiler's or driver's words."""
