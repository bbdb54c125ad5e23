"""The errors a user may see, and the exit status each one ends a command with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_BUG = 1  # an uncaught exception: our fault, shown with a traceback
EXIT_BAD_INPUT = 2  # bad recipe, data, model or flag: fails the same way again
EXIT_DIVERGED = 3  # the loss or a gradient stopped being finite
EXIT_PREEMPTED = 75  # saved and asked to stop: start the same command again
EXIT_PEER_LOST = 76  # another process of the run is gone or hangs: start again
EXIT_INTERRUPTED = 130  # Ctrl-C
EXIT_PIPE_CLOSED = 141  # what we print into has ended, as in `… | head`


class UserError(Exception):
    """Something the user can put right; printed without a traceback.

    Args:
        message: what is wrong and where (file, line, field).
        hint: what to do next; printed on its own line.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class Diverged(UserError):
    """The loss or a gradient is not finite; the message names the step."""

    exit_code = EXIT_DIVERGED
