"""Errors, by the moment they happen and by what helps.

::

    LLMError
    ├── LLMInputError          nothing was spent: the spec, the source or the setting is wrong; mend it and run again
    │   └── LLMSourceNotFoundError    there is no source yet: the data may be late
    ├── LLMStateError          storage could not be read or written; unknown is not absent, so nothing was assumed
    ├── LLMRetryableError      may pass by itself: outage, overload, interruption; ``retry_after`` says when
    │   └── LLMBusyError           somebody else works on the same rows at the moment
    ├── LLMTerminalError       will not pass by itself: every further request would fail the same way
    │   ├── LLMAuthenticationError    the key is wrong or may not use this model
    │   ├── LLMQuotaError             the account has no credit left
    │   ├── LLMConfigurationError     the endpoint refuses a request parameter, or does not know the model
    │   └── LLMBudgetError            the run has used up what it may spend
    └── LLMFailureThresholdError      more rows failed than the caller allows; the good ones are kept

No message holds a secret, a prompt, an input value or an answer.
"""

from __future__ import annotations


class LLMError(Exception):
    """Base of everything this package raises on purpose."""


class LLMInputError(LLMError, ValueError):
    """Bad input or a bad setting, found before any money was spent."""


class LLMSourceNotFoundError(LLMInputError):
    """There is no such source, or nothing in it: a wrong name, or data that is late and may still come."""


class LLMStateError(LLMError, RuntimeError):
    """Storage that cannot be read or written, or holds what it must not hold."""


class LLMRetryableError(LLMError, RuntimeError):
    """A failure that may pass by itself.

    :param retry_after: seconds to wait before trying again; ``None`` when nobody said.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LLMBusyError(LLMRetryableError):
    """Another run, or an earlier try, works on the same rows at the moment: both would pay for them."""


class LLMTerminalError(LLMError, RuntimeError):
    """A failure that every further request would meet as well."""


class LLMAuthenticationError(LLMTerminalError):
    """The endpoint does not accept the key, or the key may not use the model."""


class LLMQuotaError(LLMTerminalError):
    """The account has no credit left."""


class LLMConfigurationError(LLMTerminalError):
    """The endpoint refuses a parameter that every request carries, or does not know the model."""


class LLMBudgetError(LLMTerminalError):
    """The run has used up the tokens or the money that it may spend."""


class LLMFailureThresholdError(LLMError, RuntimeError):
    """More rows failed than the caller allows.

    :param asks_again: whether another try would ask some of these rows again. If not, each was paid for, and the next
        try would find the same.
    """

    def __init__(self, message: str, *, asks_again: bool = False) -> None:
        super().__init__(message)
        self.asks_again = asks_again
