from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_llm_provider.errors import LLMRetryableError, LLMStateError
from airflow_llm_provider.hooks.compat import AirflowRescheduleException
from airflow_llm_provider.operators.waiting import coming_back_later

LOG = logging.getLogger(__name__)


def fail(night: Any, error: Exception, **context: Any) -> None:
    with coming_back_later(night.context | context, LOG):
        raise error


class TestComingBackLater:
    def test_B8_the_task_is_put_off_for_as_long_as_the_endpoint_said(self, night: Any, caplog: Any) -> None:
        before = datetime.now(tz=UTC)
        with pytest.raises(AirflowRescheduleException) as caught:
            fail(night, LLMRetryableError("the day's requests are used up", retry_after=3600))
        wait = caught.value.reschedule_date - before
        assert timedelta(seconds=3600) <= wait < timedelta(seconds=3660)
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
    def test_what_is_soon_over_or_names_no_time_is_left_to_retries(
        self, night: Any, error: Exception
    ) -> None:
        with pytest.raises(type(error)):
            fail(night, error)

    @pytest.mark.parametrize("map_index", [-1, None])
    def test_a_task_that_is_not_mapped_is_left_to_retries(self, night: Any, map_index: int | None) -> None:
        night.ti.map_index = map_index
        with pytest.raises(LLMRetryableError):
            fail(night, LLMRetryableError("later", retry_after=3600))

    def test_nothing_is_put_off_for_more_than_a_day_in_all(self, night: Any) -> None:
        night.ti.first_reschedule = datetime.now(tz=UTC) - timedelta(hours=23, minutes=30)
        with pytest.raises(LLMRetryableError):
            fail(night, LLMRetryableError("later", retry_after=3600))

    def test_nothing_is_put_off_for_ever_in_small_steps(self, night: Any) -> None:
        with pytest.raises(LLMRetryableError):
            fail(night, LLMRetryableError("later", retry_after=301), task_reschedule_count=200)
