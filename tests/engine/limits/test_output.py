import random

import pytest

from airflow_llm_provider.engine.limits.output import OutputLength


class TestExpected:
    def test_is_the_cap_before_the_first_answer(self):
        assert OutputLength().expected(4000) == 4000

    def test_is_never_more_than_the_cap(self):
        length = OutputLength()
        length.learn(3900)
        assert length.expected(4000) == 4000

    def test_is_generous_after_few_answers_and_close_after_many(self):
        length = OutputLength()
        length.learn(100)
        after_one = length.expected(4000)
        for _ in range(100):
            length.learn(100)
        assert 300 <= after_one <= 500
        assert length.expected(4000) == 100

    def test_follows_a_dataset_whose_answers_get_longer(self):
        length = OutputLength()
        for _ in range(1000):
            length.learn(100)
        for _ in range(1000):
            length.learn(500)
        assert 490 <= length.expected(4000) <= 600

    def test_takes_an_overcounted_prompt_for_no_answer(self):
        length = OutputLength()
        length.learn(-20)
        assert length.expected(4000) == 0

    @pytest.mark.parametrize("in_flight", [1, 8, 64])
    def test_covers_what_the_requests_in_flight_take_together(self, in_flight):
        rng, length = random.Random(7), OutputLength()
        too_little = 0
        for _ in range(50):
            length.learn(int(rng.expovariate(1 / 100)))
        for _ in range(in_flight):
            length.sent()
        for _ in range(2000):
            length.ended()
            reserved = in_flight * length.expected(4000)
            length.sent()
            used = [int(rng.expovariate(1 / 100)) for _ in range(in_flight)]
            too_little += sum(used) > reserved
            length.learn(used[0])
        assert too_little < 0.1 * 2000
        assert length.expected(4000) < 100 + 2.6 * 100 * (1 / in_flight + 1 / 200) ** 0.5 + 20
