"""From a model's words to an answer, or to the reason why there is none."""

from __future__ import annotations

from airflow_llm_provider.answers.judge import AnswerJudge

__all__ = ["AnswerJudge"]
