"""How long answers usually are: so that a generous cap on them does not starve a token limit.

A request is limited by what it may cost, but a cap of 4,000 tokens on answers of 100 would leave 1/40 of the limit in
use. So an answer is reserved as long as experience says, and corrected when it is in. What must not happen is that the
requests in flight *together* take more than was reserved for them. With ``n`` answers seen, of mean ``m`` and standard
deviation ``s``, and ``k`` requests in flight, their sum is below ``k m + 2 s k sqrt(1/n + 1/k)`` in 98 of 100 cases: the
first root for not knowing the mean well yet, the second for the luck of the draw. Divided by ``k``, that is

    ``m + 2 s sqrt(1/n + 1/k)``

a request, never more than its cap. Before the first answer it is the cap. With few answers seen, ``s`` counts as no
less than the mean: those that come back first are the short ones.

Measured is everything beyond the counted prompt, so a prompt count that is a little off corrects itself as well.
"""

from __future__ import annotations

import math

#: Answers after which the newest weighs no less than 1 / _MEMORY: what is usual changes within a dataset.
_MEMORY = 200
#: Answers from which on the measured deviation is believed even if it is small.
_ENOUGH = 16
#: Standard deviations kept as a margin.
_MARGIN = 2.0


class OutputLength:
    """Learns the usual length of answers. One per sender: other senders may ask for other things."""

    __slots__ = ("_in_flight", "_mean", "_seen", "_variance")

    def __init__(self) -> None:
        self._seen = 0
        self._mean = 0.0
        self._variance = 0.0
        self._in_flight = 0

    def expected(self, cap: int) -> int:
        """Return the tokens to reserve for one more answer of at most ``cap`` tokens."""
        if not self._seen:
            return cap
        deviation = math.sqrt(self._variance)
        if self._seen < _ENOUGH:
            deviation = max(deviation, self._mean)
        doubt = math.sqrt(1.0 / min(self._seen, _MEMORY) + 1.0 / (self._in_flight + 1))
        return min(cap, math.ceil(self._mean + _MARGIN * deviation * doubt))

    def sent(self) -> None:
        """Count a request in flight."""
        self._in_flight += 1

    def ended(self) -> None:
        """Count a request that is not in flight any more."""
        self._in_flight = max(0, self._in_flight - 1)

    def learn(self, tokens: int) -> None:
        """Take in the length of an answer."""
        self._seen += 1
        weight = 1.0 / min(self._seen, _MEMORY)
        difference = max(0, tokens) - self._mean
        self._mean += weight * difference
        self._variance = (1.0 - weight) * (self._variance + weight * difference * difference)
