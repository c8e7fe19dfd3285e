import asyncio

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.errors import LLMInputError


class TestLayout:
    def test_finds_the_destination_of_a_plan(self):
        layout, plan_id = Layout.of_plan("s3://lake/labels/ds=1/_llm/plans/abc.json")
        assert layout.destination == "s3://lake/labels/ds=1/"
        assert plan_id == "abc"

    def test_the_given_destination_wins(self):
        layout, plan_id = Layout.of_plan("_llm/plans/abc.json", destination="/out")
        assert (layout.destination, plan_id) == ("/out", "abc")

    def test_a_relative_plan_needs_the_destination(self):
        with pytest.raises(LLMInputError, match="give the same destination"):
            Layout.of_plan("_llm/plans/abc.json")

    @pytest.mark.parametrize(
        "plan", ["", "s3://x/abc.json", "s3://x/_llm/plans/abc", "s3://x/_llm/plans/a/b.json"]
    )
    def test_what_is_no_plan_is_refused(self, plan):
        with pytest.raises(LLMInputError, match="names no plan"):
            Layout.of_plan(plan, destination="/out")

    def test_every_name_of_ours_is_hidden_but_the_parts(self):
        layout = Layout("/out")
        names = [layout.plan("p"), layout.shard("s"), layout.results("s"), layout.journal("s")]
        assert all(name.startswith("_llm/") for name in names)
        assert layout.part(7) == "part-00007.parquet"

    def test_a_storage_that_needs_a_loop_of_its_own_opens_inside_of_another(self):
        """As Airflow's S3 does, to look for credentials."""

        async def credentials():
            return None

        def resolver(url):
            asyncio.run(credentials())
            return MemoryFileSystem(), url

        async def read():
            return Layout("memory://loops", resolver).storage.read_bytes("nothing")

        assert asyncio.run(read()) is None
