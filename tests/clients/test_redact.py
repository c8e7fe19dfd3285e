from __future__ import annotations

import pytest

from airflow_llm_provider.clients.redact import Redactor, public_url


class TestRedactor:
    def test_takes_out_the_longer_secret_first(self):
        assert Redactor("abcd", "abcdefgh", None, "")("x abcdefgh y abcd z") == "x *** y *** z"

    def test_leaves_other_words_alone(self):
        assert Redactor("key")("the monkey asks for a keyboard, a basket and a task") == (
            "the monkey asks for a keyboard, a basket and a task"
        )


class TestPublicUrl:
    @pytest.mark.parametrize(
        ("url", "public"),
        [
            ("https://user:pw@host:8443/v1?key=s3cret#x", "https://host:8443/v1"),
            ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
            ("http://localhost/v1", "http://localhost/v1"),
        ],
    )
    def test_drops_what_may_be_secret(self, url, public):
        assert public_url(url) == public
