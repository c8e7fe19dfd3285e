"""Two merges on one destination: the output is that of one of them, or there is none."""

import pytest

from airflow_llm_provider.dataset.files.layout import INTENT, MANIFEST
from airflow_llm_provider.errors import LLMStateError

OPTIONS = {"rows_per_group": 5, "bytes_per_file": 1}
#: Changes of the storage from the first to the last of a merge.
CHANGES = 7


@pytest.fixture
def plans(workbench, numbers):
    return workbench.run(numbers(range(15))), workbench.run(numbers(range(100, 120)))


def interrupt(storage, at, happening):
    """Let something happen before the storage's so manyth change."""
    count = [0]

    def wrap(name):
        real = getattr(storage, name)

        def call(*arguments):
            count[0] += 1
            if count[0] == at:
                happening()
            return real(*arguments)

        return call

    for name in ("move", "write_bytes", "delete"):
        setattr(storage, name, wrap(name))


class TestTwoMerges:
    @pytest.mark.parametrize("at", range(1, CHANGES + 1))
    def test_the_output_is_never_mixed(self, workbench, plans, at):
        first, second = plans
        storage = workbench.layout.storage
        interrupt(storage, at, lambda: workbench.merge(second, **OPTIONS))
        if at == 1:
            workbench.merge(first, **OPTIONS)
            assert workbench.output().column("x").to_pylist() == list(range(15))
        else:
            with pytest.raises(LLMStateError, match="another run is replacing the output"):
                workbench.merge(first, **OPTIONS)
            with pytest.raises(LLMStateError, match="no run has finished there"):
                workbench.output()
        workbench.merge(first, **OPTIONS)
        assert workbench.output().column("x").to_pylist() == list(range(15))
        assert storage.files("") == [MANIFEST, *(f"part-{n:05d}.parquet" for n in range(3))]

    @pytest.mark.parametrize("at", range(2, CHANGES + 1))
    def test_one_that_is_overtaken_half_way_leaves_the_place_to_the_other(self, workbench, plans, at):
        first, second = plans
        storage = workbench.layout.storage
        names = ", ".join(f'"part-{n:05d}.parquet"' for n in range(4))
        intent = f'{{"files": [{names}], "merge": "another"}}'.encode()
        write = storage.write_bytes
        interrupt(storage, at, lambda: write(INTENT, intent))
        with pytest.raises(LLMStateError, match="another run is replacing the output"):
            workbench.merge(first, **OPTIONS)
        assert not storage.exists(MANIFEST)
        assert storage.read_bytes(INTENT) == intent
        workbench.merge(second, **OPTIONS)
        assert workbench.output().column("x").to_pylist() == list(range(100, 120))

    def test_a_part_of_another_size_is_noticed(self, bench, numbers):
        plan = bench.run(numbers(range(15)))
        storage = bench.layout.storage
        real = storage.move

        def move(old, new):
            real(old, new)
            storage.write_bytes("part-00000.parquet", b"PAR1")

        storage.move = move
        with pytest.raises(LLMStateError, match="another run is replacing the output"):
            bench.merge(plan)
        assert not storage.exists(MANIFEST)
