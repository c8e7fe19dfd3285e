from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.counting import tokens
from airflow_llm_provider.dataset.counting.counting_process import CountingProcess
from airflow_llm_provider.dataset.counting.shared_counter import SharedCounter
from airflow_llm_provider.dataset.counting.token_counters import EstimatingCounter
from airflow_llm_provider.dataset.counting.tokens import ChatTokens, token_counter
from airflow_llm_provider.jobs.splitting import preparation as preparation_module
from airflow_llm_provider.jobs.splitting.preparation import RowPreparation
from airflow_llm_provider.prompt import PromptTemplate, request_body
from airflow_llm_provider.prompt.body import fingerprint
from airflow_llm_provider.spec import CompletionSpec

ODD = 'a b\n\t %s%%{}"\\é退款😀\u2028\x00\x1f'
TEXTS = st.one_of(st.none(), st.text(alphabet=ODD, max_size=6), st.text(max_size=6))


def spec(prompt: str, **fields: object) -> CompletionSpec:
    return CompletionSpec(model="gpt-4o-mini", prompt=prompt, **fields)  # type: ignore[arg-type]


class TestRowPreparation:
    @settings(max_examples=60)
    @given(
        rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=12),
        prompt=st.sampled_from(
            [
                "{{ a }}",
                "100% of {{ a }}: {{ b }}%s",
                "{{ b }}{{ a }}\n{{ a }}",
                "é{{ a }}",
                "{{ a|upper }}{{ b }}",
            ]
        ),
        system=st.sampled_from([None, "You sort.", 'Say "%s" \\ é\ud800']),
        kind=st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]),
    )
    def test_prepares_columns_as_it_prepares_rows_one_by_one(self, rows, prompt, system, kind):
        chosen = spec(prompt, system=system)
        batch = pa.record_batch(
            {"a": pa.array([a for a, _ in rows], kind), "b": pa.array([b for _, b in rows], kind)}
        )
        prepared = RowPreparation(chosen).prepare(batch)()
        template = PromptTemplate(chosen)
        chat = ChatTokens(token_counter(chosen.model))
        for n, row in enumerate(batch.to_pylist()):
            if template.is_empty(row):
                assert (prepared.statuses[n], prepared.fingerprints[n]) == ("empty_input", None)
                continue
            messages = template.messages(row)
            assert prepared.fingerprints[n] == fingerprint(request_body(chosen, messages))
            assert prepared.tokens[n] == chat.count([messages])[0]
            assert (prepared.statuses[n], prepared.errors[n]) == (None, None)

    def test_text_that_is_no_utf8_is_sent_with_replacements(self):
        array = pa.array([b"ab", b"a\xffb", b" "]).view(pa.string())
        chosen = spec("{{ a }}!")
        prepared = RowPreparation(chosen).prepare(pa.record_batch({"a": array}))()
        sent = [[{"role": "user", "content": text}] for text in ("ab!", "a\ufffdb!")]
        assert prepared.fingerprints == [*(fingerprint(request_body(chosen, each)) for each in sent), None]
        assert prepared.statuses == [None, None, "empty_input"]

    def test_a_prompt_that_uses_no_column_is_sent_for_every_row(self):
        prepared = RowPreparation(spec("Tell a joke")).prepare(pa.record_batch({"a": ["x", None]}))()
        assert prepared.statuses == [None, None]
        assert prepared.fingerprints[0] == prepared.fingerprints[1]

    def test_columns_of_other_types_print_as_ever(self):
        batch = pa.record_batch({"a": pa.array([1, None, 3]), "b": ["x", "", None]})
        prepared = RowPreparation(spec("{{ a }} {{ b }}")).prepare(batch)()
        assert prepared.statuses == [None, "empty_input", None]

    def test_C16_a_row_beyond_the_window_is_set_aside(self):
        windowed = spec("{{ a }}", context_window=100, max_output_tokens=50)
        prepared = RowPreparation(windowed).prepare(pa.record_batch({"a": ["word " * 200, "short"]}))()
        assert prepared.statuses == ["context_too_long", None]
        assert prepared.fingerprints[0] is None
        assert prepared.tokens[0] == 0

    def test_an_estimate_sets_nothing_aside_since_it_may_be_several_times_too_high(self):
        windowed = spec("{{ a }}", context_window=100, max_output_tokens=50)
        preparation = RowPreparation(windowed)
        preparation._counter = EstimatingCounter("o200k_base", "estimated")
        preparation._tokens = ChatTokens(preparation._counter)
        prepared = preparation.prepare(pa.record_batch({"a": ["word " * 200, "short"]}))()
        assert prepared.statuses == [None, None]

    @pytest.mark.parametrize("model", ["house-model", "llama-3"])
    def test_the_endpoint_decides_when_the_vocabulary_is_not_the_models(self, model):
        windowed = dataclasses.replace(spec("{{ a }}", context_window=100, max_output_tokens=50), model=model)
        prepared = RowPreparation(windowed).prepare(pa.record_batch({"a": ["word " * 200]}))()
        assert prepared.statuses == [None]

    def test_two_processes_prepare_as_one(self, monkeypatch):
        batches = [pa.record_batch({"a": [f"{n} 退款 word " * (n % 50) for n in range(900)]})] * 4

        def prepared() -> list[object]:
            with RowPreparation(spec("{{ a }}!", system="You sort.")) as preparation:
                counting = [preparation.prepare(batch) for batch in batches]
                return [count() for count in counting]

        alone = prepared()
        monkeypatch.setattr(tokens, "_toktok", lambda _: None)
        monkeypatch.setattr(preparation_module, "token_counter", token_counter.__wrapped__)
        started = []

        class Process(CountingProcess):
            def check(self) -> None:
                super().check()
                started.append(self)

        monkeypatch.setitem(SharedCounter.__init__.__kwdefaults__, "start", Process)
        assert prepared() == alone
        assert started

    def test_any_counter_may_begin_early_and_is_closed(self, monkeypatch):
        done = []

        class Eager(EstimatingCounter):
            def begin(self, texts):
                done.append("begun")
                return super().begin(texts)

            def close(self):
                done.append("closed")

        monkeypatch.setattr(preparation_module, "token_counter", lambda *_: Eager("o200k_base", "a guess"))
        with RowPreparation(spec("{{ a }}")) as preparation:
            count = preparation.prepare(pa.record_batch({"a": ["word"]}))
            assert done == ["begun"]
            count()
        assert done == ["begun", "closed"]


class TestNotes:
    @pytest.mark.parametrize(("words", "told"), [(1022, False), (1030, True)])
    def test_fixed_text_where_no_cache_finds_it_is_told(self, words, told):
        def notes(prompt):
            return RowPreparation(CompletionSpec(model="gpt-4o", prompt=prompt)).notes

        fixed = "word " * words
        (*others,) = notes(f"{fixed}{{{{ a }}}}")
        assert others == []
        found = notes(f"{{{{ a }}}} {fixed}")
        assert bool(found) == told
        assert all(
            "where no provider's prompt cache finds them: put them before it" in note for note in found
        )
