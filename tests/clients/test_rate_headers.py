from __future__ import annotations

import datetime as dt
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.clients.rate_headers import exhausted_wait, parse_wait, rate_hint, retry_after
from airflow_llm_provider.engine.call import RateHint
from airflow_llm_provider.testing.server.limits import go_duration

NOW = 1_700_000_000.0


def http_date(epoch: float) -> str:
    return format_datetime(dt.datetime.fromtimestamp(epoch, dt.UTC), usegmt=True)


class TestParseWait:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("17ms", 0.017),
            ("500ms", 0.5),
            ("1m30s", 90.0),
            ("6m0s", 360.0),
            ("1h2m3.5s", 3723.5),
            ("1d", 86400.0),
            ("120us", 0.00012),
            ("7.66s", 7.66),
            ("2m59.56s", 179.56),
            ("0", 0.0),
            ("20", 20.0),
            ("1.5", 1.5),
            (" 3 ", 3.0),
            (str(int(NOW) + 30), 30.0),
            (str((int(NOW) + 30) * 1000), 30.0),
            (str(int(NOW) - 30), 0.0),
            ("2023-11-14T22:13:50Z", 30.0),
            ("2023-11-14T22:13:50+00:00", 30.0),
            ("2023-11-14T22:13:50", 30.0),
            (http_date(NOW + 90), 90.0),
            (http_date(NOW - 90), 0.0),
        ],
    )
    def test_C3_reads_every_notation(self, text, seconds):
        assert parse_wait(text, now=NOW) == pytest.approx(seconds)

    @pytest.mark.parametrize(
        "text",
        [
            None,
            "",
            "soon",
            "-5",
            "-5s",
            "nan",
            "inf",
            "-inf",
            "1e400",
            "s",
            "m5",
            "5 minutes",
            "1m30",
            "9999999h",
            "\x00",
        ],
    )
    def test_C3_nonsense_is_nothing(self, text):
        assert parse_wait(text, now=NOW) is None

    @given(st.text(max_size=20))
    def test_never_raises_and_never_waits_backwards_or_for_ever(self, text):
        seconds = parse_wait(text, now=NOW)
        assert seconds is None or 0 <= seconds <= 366 * 86400

    @given(st.floats(0, 10_000))
    def test_reads_what_the_scripted_server_writes(self, seconds):
        assert parse_wait(go_duration(seconds), now=NOW) == pytest.approx(seconds, abs=0.001)


class TestRetryAfter:
    def test_milliseconds_win(self):
        assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}, now=NOW) == 1.5

    @pytest.mark.parametrize("nonsense", ["x", "-1", "nan", ""])
    def test_nonsense_in_milliseconds_falls_back_to_seconds(self, nonsense):
        assert retry_after({"retry-after-ms": nonsense, "retry-after": "9"}, now=NOW) == 9

    def test_a_date(self):
        assert retry_after({"retry-after": http_date(NOW + 7)}, now=NOW) == 7

    def test_nothing_said(self):
        assert retry_after({}, now=NOW) is None


class TestRateHint:
    def test_reads_openai(self):
        headers = {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-reset-tokens": "6m0s",
        }
        assert rate_hint(headers, now=NOW) == RateHint(
            limit_requests=60,
            limit_tokens=150000,
            remaining_requests=59,
            remaining_tokens=149984,
            reset_requests=1.0,
            reset_tokens=360.0,
        )

    def test_reads_openrouter(self):
        headers = {
            "x-ratelimit-limit": "20",
            "x-ratelimit-remaining": "0",
            "x-ratelimit-reset": str(int((NOW + 5) * 1000)),
        }
        assert rate_hint(headers, now=NOW) == RateHint(
            limit_requests=20, remaining_requests=0, reset_requests=5.0
        )

    def test_nonsense_is_nothing(self):
        headers = {"x-ratelimit-limit-requests": "many", "x-ratelimit-remaining-tokens": "-3"}
        assert rate_hint(headers, now=NOW) == RateHint()

    def test_without_headers_there_is_no_hint(self):
        assert rate_hint({"content-type": "application/json"}, now=NOW) is None

    @given(st.dictionaries(st.text(max_size=5).map("x-ratelimit-{}".format), st.text(max_size=10)))
    def test_never_raises(self, headers):
        rate_hint(headers, now=NOW)


class TestExhaustedWait:
    @pytest.mark.parametrize(
        ("hint", "seconds"),
        [
            (None, None),
            (RateHint(), None),
            (RateHint(remaining_requests=0, reset_requests=1.0, remaining_tokens=5, reset_tokens=360.0), 1.0),
            (
                RateHint(remaining_requests=0, reset_requests=1.0, remaining_tokens=0, reset_tokens=360.0),
                360.0,
            ),
            (
                RateHint(remaining_requests=5, reset_requests=1.0, remaining_tokens=5, reset_tokens=360.0),
                None,
            ),
            (RateHint(reset_requests=0.017, reset_tokens=360.0), 0.017),
            (RateHint(remaining_requests=3, reset_requests=0.017, reset_tokens=360.0), 360.0),
            (RateHint(remaining_requests=0), None),
        ],
    )
    def test_C3_waits_for_the_later_exhausted_limit(self, hint, seconds):
        assert exhausted_wait(hint) == seconds
