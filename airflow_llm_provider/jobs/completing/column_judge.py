"""A judge who also looks whether an answer fits its column, so that every count tells what the output will say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.answers import AnswerJudge
from airflow_llm_provider.dataset.outcomes.columns import OutputColumns
from airflow_llm_provider.dataset.outcomes.json_schema import MisfitError
from airflow_llm_provider.engine.call import Judgement
from airflow_llm_provider.engine.status import RowStatus

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import Reply
    from airflow_llm_provider.spec import CompletionSpec


class ColumnJudge:
    """Judges completions by their schema, and by the columns made of it.

    :param spec: what is asked.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        self._judge = AnswerJudge(spec)
        self._columns = OutputColumns(spec)

    def __call__(self, reply: Reply) -> Judgement:
        """Judge one completion."""
        judgement = self._judge(reply)
        if judgement.status is not RowStatus.SUCCESS:
            return judgement
        try:
            self._columns.convert(judgement.answer)
        except MisfitError as error:
            return Judgement(status=RowStatus.INVALID_OUTPUT, code="does_not_fit_column", message=str(error))
        return judgement
