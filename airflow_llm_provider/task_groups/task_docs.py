"""What the UI says about each task of an :func:`~airflow_llm_provider.task_groups.llm_map.llm_map`."""

from __future__ import annotations

#: Markdown by task id.
DOCS = {
    "split": "Counts the dataset's tokens, cuts it into shards, and says what they will cost. Sends nothing.",
    "list": "Lists the input files and puts them into groups, each of which one task counts.",
    "count": "Counts the tokens of some of the input files, and cuts them into shards. Sends nothing.",
    "plan": "Makes one plan of all shards, and says what they will cost. Sends nothing.",
    "complete": (
        "Asks the model about every row of one shard. Every answer is kept as it arrives: cleared or tried again, it asks "
        "only for rows without one."
    ),
    "merge": (
        "Writes one output of all shards, in input order, and a summary of the run. Rows without an answer are also in "
        "`_rejects.parquet`."
    ),
}
