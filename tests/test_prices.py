from __future__ import annotations

import socket
import timeit

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prices import Pricer

OPENAI = "https://api.openai.com/v1"
MILLION = Usage(prompt_tokens=1_000_000)
USAGES = st.builds(
    lambda prompt, cached, completion: Usage(
        prompt_tokens=prompt, cached_tokens=min(prompt, cached), completion_tokens=completion
    ),
    st.integers(0, 2_000_000),
    st.integers(0, 2_000_000),
    st.integers(0, 200_000),
)


class TestListedPrices:
    def test_known_models_have_a_price(self):
        usage = Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=500)
        assert Pricer(base_url=OPENAI).cost("gpt-4o-mini", usage) == pytest.approx(0.0001725)
        assert Pricer().cost("gpt-4o-mini-2024-07-18", usage) == pytest.approx(0.0001725)

    @pytest.mark.parametrize("model", ["nonsense", "llama3.1:8b", "", None, "gpt-4o mini; drop"])
    def test_I6_an_unknown_model_is_unknown_not_free(self, model):
        assert Pricer().cost(model, Usage(prompt_tokens=1)) is None

    def test_a_famous_name_on_another_endpoint_is_not_the_famous_model(self):
        for url in ("http://localhost:8000/v1", "http://127.0.0.1:11434/v1", "https://models.example.org/v1"):
            assert Pricer(base_url=url).cost("gpt-4o", MILLION) is None

    def test_tiers_count_per_request(self):
        price = Pricer()
        small = price.cost("gemini-2.5-pro", Usage(prompt_tokens=100_000))
        large = price.cost("gemini-2.5-pro", Usage(prompt_tokens=300_000))
        assert large > 3 * small

    @given(
        st.sampled_from(["gpt-4o", "gpt-5", "claude-sonnet-4-5", "gemini-2.5-pro", "deepseek-chat"]), USAGES
    )
    def test_the_short_cut_agrees_with_the_library(self, model, usage):
        counted = genai_prices.Usage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cached_tokens,
        )
        expected = float(genai_prices.calc_price(counted, model).total_price)
        assert Pricer().cost(model, usage) == pytest.approx(expected)

    def test_the_short_cut_agrees_for_every_model_of_openai(self):
        usage = Usage(prompt_tokens=1234, completion_tokens=567, cached_tokens=89)
        counted = genai_prices.Usage(input_tokens=1234, output_tokens=567, cache_read_tokens=89)
        provider = next(provider for provider in get_snapshot().providers if provider.id == "openai")
        pricer, compared = Pricer(base_url=OPENAI), 0
        for model in provider.models:
            cost = pricer.cost(model.id, usage)
            if cost is not None:
                expected = genai_prices.calc_price(counted, model.id, provider_api_url=OPENAI).total_price
                assert cost == pytest.approx(float(expected)), model.id
                compared += 1
        assert compared > 20

    def test_prices_that_change_with_the_hour_are_looked_up_again(self):
        now = [0.0]
        pricer = Pricer(epoch=lambda: now[0])
        pricer.cost("gpt-4o", MILLION)
        first = pricer._known["gpt-4o"][0]
        now[0] = first
        pricer.cost("gpt-4o", MILLION)
        assert pricer._known["gpt-4o"][0] > first

    def test_nothing_is_fetched(self, monkeypatch):
        def refuse(*_):
            raise AssertionError("the network was used")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        Pricer(base_url=OPENAI).cost("gpt-4o", MILLION)

    def test_is_cheap_in_the_row_path(self):
        pricer, usage = Pricer(base_url=OPENAI), Usage(prompt_tokens=5, completion_tokens=5)
        pricer.cost("gpt-4o-mini", usage)
        assert (
            min(timeit.repeat(lambda: pricer.cost("gpt-4o-mini", usage), number=2000, repeat=5)) / 2000
            < 20e-6
        )


class TestOverrides:
    OWN = {"mine": {"input_per_mtok": 1, "output_per_mtok": 2.5, "cached_input_per_mtok": 0.25}}  # noqa: RUF012

    def test_own_prices_win(self):
        usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=2_000_000)
        assert Pricer(self.OWN).cost("mine", usage) == pytest.approx(0.6 + 0.1 + 5)
        own = {"gpt-4o": {"input_per_mtok": 7, "output_per_mtok": 7}}
        assert Pricer(own, base_url=OPENAI).cost("gpt-4o", MILLION) == pytest.approx(7)

    def test_cached_tokens_cost_as_much_as_others_unless_given(self):
        own = {"mine": {"input_per_mtok": 2, "output_per_mtok": 0}}
        usage = Usage(prompt_tokens=1_000_000, cached_tokens=500_000)
        assert Pricer(own).cost("mine", usage) == pytest.approx(2)

    def test_a_star_prices_every_other_model(self):
        own = {**self.OWN, "*": {"input_per_mtok": 0, "output_per_mtok": 0}}
        assert Pricer(own, base_url="http://localhost/v1").cost("llama", MILLION) == 0
        assert Pricer(own).cost("mine", MILLION) == pytest.approx(1)

    @pytest.mark.parametrize(
        "prices",
        [
            {},
            {"input_per_mtok": 1},
            {"input_per_mtok": 1, "output_per_mtok": 1, "image": 1},
            {"input_per_mtok": -1, "output_per_mtok": 1},
            {"input_per_mtok": float("nan"), "output_per_mtok": 1},
            {"input_per_mtok": "1", "output_per_mtok": 1},
            {"input_per_mtok": True, "output_per_mtok": 1},
            5,
        ],
    )
    def test_what_is_no_price_is_refused(self, prices):
        with pytest.raises(LLMInputError, match="override for 'm'"):
            Pricer({"m": prices})

    def test_prices_that_are_no_mapping_are_refused(self):
        with pytest.raises(LLMInputError, match="prices are a str"):
            Pricer("m")

    @given(USAGES, USAGES)
    def test_costs_add_up(self, one, two):
        pricer = Pricer(self.OWN)
        assert pricer.cost("mine", one + two) == pytest.approx(
            pricer.cost("mine", one) + pricer.cost("mine", two)
        )


class TestOf:
    def test_own_prices_of_the_model_asked_for_win_over_the_name_that_answered(self):
        price = Pricer(TestOverrides.OWN).of("mine")
        assert price("gpt-4o-2024-08-06", MILLION) == pytest.approx(1)
        assert price(None, MILLION) == pytest.approx(1)

    def test_the_model_that_answered_counts_before_the_one_asked_for(self):
        price = Pricer(base_url="https://x.openai.azure.com/openai/v1").of("my-deployment")
        assert price("gpt-4o-mini", MILLION) == pytest.approx(0.15)

    def test_an_unknown_name_that_answered_falls_back_to_the_one_asked_for(self):
        assert Pricer(base_url=OPENAI).of("gpt-4o-mini")("internal-7", MILLION) == pytest.approx(0.15)

    def test_unknown_stays_unknown(self):
        assert Pricer().of("nonsense")("other", MILLION) is None


class TestEstimate:
    def test_I6_is_the_cost_of_one_request(self):
        pricer = Pricer(TestOverrides.OWN)
        assert pricer.estimate("mine", prompt_tokens=1_000_000, completion_tokens=1_000_000) == pytest.approx(
            3.5
        )
        assert pricer.estimate("unknown", prompt_tokens=1, completion_tokens=1) is None
