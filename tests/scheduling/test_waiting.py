from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_llm_provider.errors import LLMRetryableError, LLMStateError
from airflow_llm_provider.hooks.compat import AirflowRescheduleException
from airflow_llm_provider.scheduling.waiting import coming_back_later

LOG = logging.getLogger(__name__)


def fail(
    error: Exception, *, map_index: int | None = 0, put_off_since: datetime | None = None, **context: Any
) -> None:
    instance = SimpleNamespace(map_index=map_index, get_first_reschedule_date=lambda _: put_off_since)
    with coming_back_later(cast("Any", {"ti": instance, **context}), LOG):
        raise error


class TestComingBackLater:
    def test_B8_the_task_is_put_off_for_as_long_as_the_endpoint_said(self, caplog: Any) -> None:
        before = datetime.now(tz=UTC)
        with pytest.raises(AirflowRescheduleException) as caught:
            fail(LLMRetryableError("the day's requests are used up", retry_after=3600))
        hour, after = timedelta(hours=1), datetime.now(tz=UTC)
        assert before + hour <= caught.value.reschedule_date <= after + hour
        assert "the day's requests are used up. The task gives its slots back" in caplog.text

    @pytest.mark.parametrize(
        "error",
        [
            LLMRetryableError("the endpoint is down"),
            LLMRetryableError("the endpoint is down", retry_after=300),
            LLMStateError("no storage"),
            ValueError("x"),
        ],
    )
    def test_what_is_soon_over_or_names_no_time_is_left_to_retries(self, error: Exception) -> None:
        with pytest.raises(type(error)):
            fail(error)

    @pytest.mark.parametrize("map_index", [-1, None])
    def test_a_task_that_is_not_mapped_is_left_to_retries(self, map_index: int | None) -> None:
        with pytest.raises(LLMRetryableError):
            fail(LLMRetryableError("later", retry_after=3600), map_index=map_index)

    def test_nothing_is_put_off_for_more_than_a_day_in_all(self) -> None:
        since = datetime.now(tz=UTC) - timedelta(hours=23, minutes=30)
        with pytest.raises(LLMRetryableError):
            fail(LLMRetryableError("later", retry_after=3600), put_off_since=since)

    def test_nothing_is_put_off_for_ever_in_small_steps(self) -> None:
        with pytest.raises(LLMRetryableError):
            fail(LLMRetryableError("later", retry_after=301), task_reschedule_count=200)
