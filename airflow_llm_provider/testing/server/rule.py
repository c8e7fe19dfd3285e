"""What happens to which request: a script is a list of rules, the first that matches decides."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.testing.server.http import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule. Without a condition it matches every request; without an effect it answers as by default.

    :param contains: text that the messages hold.
    :param model: model asked for.
    :param has: key that the body holds, such as ``max_tokens``.
    :param key: API key sent.
    :param skip: matching requests to let pass first.
    :param times: matching requests to act on; ``None``: all.
    :param after: seconds since the script began before which the rule sleeps.
    :param until: seconds since the script began from which the rule is over.
    :param status: HTTP status.
    :param body: JSON body in place of a completion.
    :param text: raw body in place of a completion, sent as ``content_type``.
    :param headers: headers to add.
    :param delay: seconds before the response, on top of the server's latency.
    :param held: the response comes when the next script begins, however long that takes.
    :param fault: ``hang``, ``drop`` or ``half``.
    :param cut: bytes to leave of the body, in a response that is whole as far as HTTP goes.
    :param answer: content of the completion; with ``null_content`` left out of the message.
    :param refusal: refusal of the completion.
    :param finish_reason: finish reason of the completion.
    :param usage: usage of the completion, any JSON value; left out with ``no_usage``.
    """

    contains: str | None = None
    model: str | None = None
    has: str | None = None
    key: str | None = None
    skip: int = 0
    times: int | None = None
    after: float = 0.0
    until: float | None = None
    status: int = 200
    body: Any = None
    text: str | None = None
    content_type: str = "text/html"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    held: bool = False
    fault: Fault | None = None
    cut: int | None = None
    answer: str | None = None
    null_content: bool = False
    refusal: str | None = None
    finish_reason: str = "stop"
    usage: Any = None
    no_usage: bool = False

    def __post_init__(self) -> None:
        if self.fault is not None:
            object.__setattr__(self, "fault", Fault(self.fault))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read a rule.

        :raises ValueError: when it has a key that no rule has.
        """
        unknown = sorted(set(value) - {f.name for f in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"a rule has no {', '.join(unknown)}")
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain JSON values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def matches(self, body: Mapping[str, Any], *, text: str, key: str | None, seconds: float) -> bool:
        """Say whether the rule speaks of a request.

        :param seconds: since the script began.
        """
        return (
            (self.contains is None or self.contains in text)
            and (self.model is None or body.get("model") == self.model)
            and (self.has is None or self.has in body)
            and (self.key is None or key == self.key)
            and self.after <= seconds
            and (self.until is None or seconds < self.until)
        )


class Script:
    """Rules with the number of times each has matched.

    :param rules: in the order in which they are tried.
    :param now: monotonic time at which the script begins.
    """

    def __init__(self, rules: Iterable[Rule], *, now: float) -> None:
        self._rules = tuple(rules)
        self._matches = [0] * len(self._rules)
        self._began = now

    def find(self, body: Mapping[str, Any], *, text: str, key: str | None, now: float) -> Rule | None:
        """Return the first rule that acts on a request, counting the match."""
        for number, rule in enumerate(self._rules):
            if not rule.matches(body, text=text, key=key, seconds=now - self._began):
                continue
            self._matches[number] += 1
            acted = self._matches[number] - rule.skip
            if acted > 0 and (rule.times is None or acted <= rule.times):
                return rule
        return None
