import importlib.util
import json
import socket
import subprocess
import sys

import pytest
import toktok
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.counting import bundle_counter, tokens, vocabularies
from airflow_llm_provider.dataset.counting.bundle_counter import BundleCounter
from airflow_llm_provider.dataset.counting.token_counters import (
    PROBE_COUNTS,
    PROBES,
    EstimatingCounter,
    TiktokenCounter,
    ToktokCounter,
    pieces,
)
from airflow_llm_provider.dataset.counting.tokens import ChatTokens, encoding_of_model, token_counter
from airflow_llm_provider.dataset.counting.vocabularies import VocabularyMissingError, load_encoding
from airflow_llm_provider.errors import LLMInputError

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
#: Where the rules that cut texts into words meet.
KNOTTY = " \n\r\t'stlvdmreAZaz019.,/-é中の\u0301\u200d\u3000\x1c😀<|>"
SAMPLES = {
    "english": "The customer wrote that the invoice from last month has not been paid, although the bank says so. "
    * 9,
    "german": "Der Kunde schrieb, dass die Rechnung vom letzten Monat trotz Überweisung nicht bezahlt wurde. "
    * 9,
    "chinese": "客户写道，上个月的发票尚未支付，尽管银行确认了转账。请帮我查询一下订单状态，谢谢。" * 9,
    "russian": "Клиент написал, что счет за прошлый месяц не оплачен, хотя банк подтверждает перевод. " * 9,
    "hindi": "ग्राहक ने लिखा कि पिछले महीने का चालान नहीं चुकाया गया है। " * 9,
    "code": "def f(x, y):\n    return {k: v for k, v in zip(x, y) if v is not None}\n" * 9,
    "json": '{"id": 12345, "name": "Müller", "tags": ["a","b"], "price": 12.50, "ok": true}\n' * 9,
    "base64": "aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQgZGF0YQzX9kQw3" * 9,
}


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def fresh():
    """Forget loaded vocabularies before and after."""
    load_encoding.cache_clear()
    token_counter.cache_clear()
    yield
    load_encoding.cache_clear()
    token_counter.cache_clear()


@pytest.fixture
def nothing_installed(monkeypatch):
    """Hide toktok and the bundled vocabularies."""
    real = importlib.util.find_spec

    def find_spec(name, *args):
        return None if name in {"toktok", "bpe_openai"} else real(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(bundle_counter, "_bindings", bundle_counter._bindings.__wrapped__)


class TestLoadEncoding:
    @pytest.mark.parametrize("name", ["o200k_base", "cl100k_base", "o200k_harmony"])
    def test_D2_needs_neither_network_nor_cache(self, name, no_network, fresh, monkeypatch, tmp_path):
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        assert load_encoding(name).name == name
        assert list(tmp_path.iterdir()) == []

    def test_D2_takes_the_users_cache(self, no_network, fresh, nothing_installed, monkeypatch, tmp_path):
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        with pytest.raises(VocabularyMissingError):
            load_encoding("cl100k_base")
        url = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
        monkeypatch.undo()
        data = vocabularies._read_bundled(url)
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(vocabularies, "_read_bundled", lambda url: None)
        # The name that tiktoken itself gives the file: SHA-1 of the URL.
        (tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4").write_bytes(data)
        assert load_encoding("cl100k_base").encode_ordinary("hello world") == [15339, 1917]

    def test_D2_a_damaged_vocabulary_is_none(self, fresh, monkeypatch, tmp_path):
        monkeypatch.setattr(vocabularies, "_read_bundled", lambda url: b"aGVsbG8= 1\n")
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        with pytest.raises(VocabularyMissingError):
            load_encoding("o200k_base")

    def test_an_unknown_encoding_names_the_known_ones(self):
        with pytest.raises(LLMInputError, match="encoding is 'nosuch': tiktoken has .*o200k_base"):
            load_encoding("nosuch")

    def test_is_tiktokens_own_definition(self):
        import tiktoken_ext.openai_public

        assert "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d" in (
            tiktoken_ext.openai_public.o200k_base.__code__.co_consts
        )
        encoding = load_encoding("o200k_base")
        assert encoding.n_vocab == 200019
        assert encoding.decode(encoding.encode_ordinary("退款 naïve 😀")) == "退款 naïve 😀"


class TestTokenCounter:
    def test_D2_estimates_with_one_note_when_nothing_is_there(
        self, no_network, fresh, nothing_installed, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        counter = token_counter("gpt-4o-mini")
        assert not counter.exact
        assert "nothing is downloaded" in counter.note
        assert "airflow-llm-provider[offline]" in counter.note
        assert counter.count(["hello world", ""]) == [4, 0]
        assert token_counter("gpt-4o-mini") is counter

    @pytest.mark.parametrize(
        ("model", "encoding"),
        [
            ("gpt-4o-mini", "o200k_base"), ("gpt-4o-2024-08-06", "o200k_base"), ("gpt-4.1-nano", "o200k_base"),
            ("gpt-5", "o200k_base"), ("gpt-5.2-mini", "o200k_base"), ("o1-pro", "o200k_base"), ("o3", "o200k_base"),
            ("o4-mini", "o200k_base"), ("chatgpt-4o-latest", "o200k_base"), ("ft:gpt-4o-mini:acme", "o200k_base"),
            ("gpt-oss-20b", "o200k_harmony"), ("openai/gpt-4o", "o200k_base"), ("GPT-4o", "o200k_base"),
            ("gpt-4", "cl100k_base"), ("gpt-4-turbo", "cl100k_base"), ("gpt-3.5-turbo-0125", "cl100k_base"),
            ("azure/gpt-35-turbo", "cl100k_base"), ("llama-3.1-8b", None), ("claude-sonnet", None), ("smollm2", None),
        ],
    )  # fmt: skip
    def test_knows_current_models(self, model, encoding):
        assert encoding_of_model(model) == encoding

    def test_an_unknown_model_is_counted_with_one_note(self):
        counter = token_counter("smollm2")
        assert counter.name == "o200k_base"
        assert not counter.exact
        assert "'smollm2'" in counter.note
        assert "o200k_base" in counter.note

    def test_a_given_encoding_needs_no_note(self):
        counter = token_counter("smollm2", "cl100k_base")
        assert (counter.name, counter.exact, counter.note) == ("cl100k_base", True, None)

    def test_an_unknown_encoding_is_refused(self):
        with pytest.raises(LLMInputError, match="encoding is 'nosuch'"):
            token_counter("gpt-4o", "nosuch")

    @pytest.mark.parametrize("installed", ["toktok", "bpe_openai"])
    def test_loads_no_table_that_it_does_not_need(self, installed):
        script = (
            "import sys; from airflow_llm_provider.dataset.counting import tokens\n"
            f"if {installed!r} != 'toktok': tokens._toktok = lambda name: None\n"
            "assert tokens.token_counter('gpt-4o').count(['x']) == [1]\n"
            "assert not {'bpe_openai', 'bpe_openai.registry', 'tiktoken.load'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


class _WrongBindings:
    @staticmethod
    def tokenizer_for_encoding(name):
        return _WrongBindings()

    def count(self, text):
        return 1


@pytest.fixture(params=["tiktoken", "bundle", "toktok"])
def counter(request):
    if request.param == "bundle":
        return bundle_counter.bundle_counter("o200k_base")
    if request.param == "tiktoken":
        return TiktokenCounter(load_encoding("o200k_base"))
    return ToktokCounter("o200k_base", toktok)


class TestCounting:
    def test_counts_as_tiktoken_does(self, counter):
        assert tuple(counter.count(PROBES)) == PROBE_COUNTS["o200k_base"]

    def test_D1_special_tokens_count_as_ordinary_text(self, counter):
        assert counter.count(["Chapter 2 explains the <|endoftext|> marker."]) == [14]

    def test_D4_halves_of_surrogates_count_as_what_is_sent(self, counter):
        assert counter.count(["ok \ud83d end", "x"]) == counter.count(["ok \ufffd end", "x"])

    def test_no_texts_are_no_counts(self, counter):
        assert counter.count([]) == []

    @pytest.mark.timeout(60)  # without pieces it takes hours
    @pytest.mark.parametrize("text", ["a", "^", " ", "\n", "\t ", "退", "word ", "é1 "])
    def test_D5_a_million_signs_take_bounded_time(self, counter, text):
        text = text * (1_000_000 // len(text))
        (count,) = counter.count([text])
        whole = ToktokCounter("o200k_base", toktok).count([text])[0]
        assert abs(count - whole) <= 2 * len(pieces(text))

    @settings(max_examples=60)
    @given(
        texts=st.lists(
            st.one_of(
                TEXTS,
                st.text("<|endoftxpr>é \n\ud83d", max_size=30),
                st.sampled_from(["<|endoftext|>", "<|endoftext|", "<|endofprompt|>x"]),
            ),
            max_size=8,
        ),
        encoding=st.sampled_from(["o200k_base", "cl100k_base"]),
    )
    def test_texts_counted_together_count_as_alone(self, texts, encoding):
        loaded = load_encoding(encoding)
        assert TiktokenCounter(loaded).count(texts) == [len(loaded.encode_ordinary(text)) for text in texts]

    def test_many_texts_keep_their_order(self, counter):
        texts = ["word " * n for n in range(2000)]
        assert counter.count(texts) == [counter.count([text])[0] for text in texts]

    @given(
        st.lists(st.one_of(TEXTS, st.text(KNOTTY, max_size=40)), max_size=10),
        st.sampled_from(["o200k_base", "cl100k_base", "o200k_harmony"]),
    )
    def test_all_count_as_tiktoken_does(self, texts, encoding):
        exact = [len(load_encoding(encoding).encode_ordinary(text)) for text in texts]
        assert ToktokCounter(encoding, toktok).count(texts) == exact
        assert bundle_counter.bundle_counter(encoding).count(texts) == exact
        assert TiktokenCounter(load_encoding(encoding)).count(texts) == exact

    @pytest.mark.parametrize("encoding", sorted(PROBE_COUNTS))
    def test_the_probes_hold_tiktokens_counts(self, encoding):
        exact = tuple(len(load_encoding(encoding).encode_ordinary(text)) for text in PROBES)
        assert PROBE_COUNTS[encoding] == exact

    def test_a_counter_that_counts_otherwise_is_not_used(self, monkeypatch):
        monkeypatch.setattr(toktok, "batch_count", lambda texts, name: [1] * len(texts))
        assert isinstance(tokens._counter("o200k_base"), BundleCounter)

        def fail(texts, name):
            raise RuntimeError

        monkeypatch.setattr(toktok, "batch_count", fail)
        assert isinstance(tokens._counter("o200k_base"), BundleCounter)
        monkeypatch.setattr(bundle_counter, "_bindings", lambda: _WrongBindings)
        assert isinstance(tokens._counter("o200k_base"), TiktokenCounter)

    def test_a_bundle_without_machine_code_is_not_used(self, monkeypatch, tmp_path):
        (tmp_path / "bpe_openai").mkdir()
        (tmp_path / "bpe_openai" / "_bindings.abi3.so").write_bytes(b"no machine code")
        (tmp_path / "bpe_openai" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(bundle_counter, "_bindings", bundle_counter._bindings.__wrapped__)
        assert bundle_counter.bundle_counter("o200k_base") is None

    def test_an_encoding_without_known_counts_is_tiktokens(self):
        assert bundle_counter.bundle_counter("p50k_base") is None

    @pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
    @pytest.mark.parametrize("language", sorted(SAMPLES))
    def test_D2_the_estimate_is_rather_too_high(self, encoding, language):
        text = SAMPLES[language]
        real = len(load_encoding(encoding).encode_ordinary(text))
        (estimate,) = EstimatingCounter(encoding, "").count([text])
        assert 0.9 * real <= estimate <= 6 * real


class TestPieces:
    @settings(max_examples=30)
    @given(st.text(st.sampled_from("ab 1\n."), min_size=1, max_size=40), st.integers(1, 9000))
    def test_lose_nothing(self, text, times):
        parts = pieces(text * times)
        assert "".join(parts) == text * times
        assert all(len(part) <= 50_000 for part in parts)

    def test_cut_between_words_count_exactly(self):
        text = "The quick brown fox, 42 of them, jumps over naïve dogs.\n" * 8000
        encoding = load_encoding("o200k_base")
        assert sum(len(encoding.encode_ordinary(p)) for p in pieces(text)) == len(
            encoding.encode_ordinary(text)
        )


class TestChatTokens:
    class Words:
        name, exact, note = "words", True, None

        def __init__(self):
            self.calls = []

        def count(self, texts):
            self.calls.append(list(texts))
            return [len(text.split()) for text in texts]

    def conversation(self, text, system="be very brief"):
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]

    def test_D8_counts_messages_roles_and_priming(self):
        counts = ChatTokens(self.Words()).count([self.conversation("one two"), self.conversation("three")])
        # Twice 3 a message, 1 a role, 3 words of system; 3 for the reply.
        assert counts == [3 + 2 * (3 + 1) + 3 + 2, 3 + 2 * (3 + 1) + 3 + 1]

    @pytest.mark.parametrize(("model", "billed"), [("gpt-4", 129), ("gpt-4o", 124), ("gpt-4o-mini", 124)])
    def test_the_published_example_counts_as_it_was_billed(self, model, billed):
        # Of OpenAI's cookbook, "How to count tokens with tiktoken", with what the API answered.
        messages = [
            (
                "system",
                "You are a helpful, pattern-following assistant that translates corporate jargon into plain English.",
            ),
            ("system", "New synergies will help drive top-line growth."),
            ("system", "Things working well together will increase revenue."),
            (
                "system",
                "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage.",
            ),
            ("system", "Let's talk later when we're less busy about how to do better."),
            (
                "user",
                "This late pivot means we don't have time to boil the ocean for the client deliverable.",
            ),
        ]
        counter = token_counter(model)
        # Four of them have a name there, which is a token and its own; no request of ours has one.
        names = sum(1 + n for n in counter.count(["example_user", "example_assistant"] * 2))
        conversation = [{"role": role, "content": content} for role, content in messages]
        assert ChatTokens(counter).count([conversation])[0] + names == billed

    def test_the_same_system_text_is_counted_once(self):
        words = self.Words()
        ChatTokens(words).count([self.conversation("a")] * 100)
        assert [call for call in words.calls if call == ["be very brief"]] == [["be very brief"]]
        assert words.calls[-1] == ["a"] * 100

    def test_system_texts_that_differ_are_counted_right(self):
        counts = ChatTokens(self.Words()).count([self.conversation("a", "w " * n) for n in range(200)])
        assert counts == [3 + 8 + 1 + n for n in range(200)]

    def test_a_schema_is_part_of_the_prompt(self):
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        counter = token_counter("gpt-4o")
        extra = (
            ChatTokens(counter, schema).count([self.conversation("x")])[0]
            - ChatTokens(counter).count([self.conversation("x")])[0]
        )
        assert extra == counter.count([json.dumps(schema, separators=(",", ":"))])[0] + 16

    def test_no_conversations_are_no_counts(self):
        assert ChatTokens(self.Words()).count([]) == []
