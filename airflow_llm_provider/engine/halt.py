"""The end of a run before its last row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Halt:
    """Why a run ends early, and until when requests in flight may still come back.

    :param error: what to raise in the end; ``None``: the run was asked to stop, and reports.
    :param deadline: monotonic seconds.
    """

    reason: str
    error: BaseException | None
    deadline: float

    def join(self, reason: str, error: BaseException | None, deadline: float) -> None:
        """Take in a further reason: the earlier deadline and the graver error win, none is lost."""
        self.deadline = min(self.deadline, deadline)
        if error is None or error is self.error:
            return
        if self.error is None or (isinstance(self.error, Exception) and not isinstance(error, Exception)):
            self.reason, self.error = reason, error
        elif type(error) is not type(self.error):
            # The type only: an arbitrary exception's text may quote row text.
            self.error.add_note(f"While the run stopped, {type(error).__name__} was raised too")
