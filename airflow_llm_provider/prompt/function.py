"""The prompt as a Python function of one row, in place of a template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt.text import RowRenderError, clean_text
from airflow_llm_provider.spec import innermost

if TYPE_CHECKING:
    from types import CodeType, TracebackType


#: Who may speak in a conversation that asks for a completion.
_ROLES = ("system", "developer", "user", "assistant")

Messages = list[dict[str, str]]


class PromptFunction:
    """Turns rows into messages by calling the user's function.

    It is called while the dataset is split, once for each row, and what it returns is kept in the shard: that is what is
    counted, hashed and sent. A later change of the function changes nothing of a plan that stands.

    :param function: from a row, a dict of all its columns, to the user's message or to a list of messages; ``None`` or
        blank: there is nothing to ask.
    :param opening: the messages before the function's.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any], opening: Messages) -> None:
        self._function = function
        self.name = _name_of(function)
        #: The messages before the function's, the same for every row.
        self.opening = opening

    def check(self, available: Sequence[str], *, binary: Collection[str] = ()) -> None:
        """Accept any columns: which of them it uses, only the function knows."""

    def messages(self, row: dict[str, Any]) -> Messages | None:
        """Return the function's messages for one row, without :attr:`opening`; ``None``: nothing to ask.

        :raises RowRenderError: when the function fails, or returns what is no message. The text of its own error is
            dropped, since it may quote the row.
        """
        try:
            returned = self._function(row)
        except Exception as error:  # noqa: BLE001 -- a function can raise anything
            line = _line_in(getattr(innermost(self._function), "__code__", None), error.__traceback__)
            where = "" if line is None else f" in line {line} of the file"
            raise RowRenderError(f"{self.name}() raised {type(error).__name__}{where}") from None
        if returned is None or (isinstance(returned, str) and not returned.strip()):
            return None
        if isinstance(returned, str):
            return [{"role": "user", "content": clean_text(returned)}]
        if not isinstance(returned, (list, tuple)) or not returned:
            raise RowRenderError(
                f"{self.name}() returned {_kind(returned)}: return the user's message as a text, a list of messages, or "
                "None for a row to leave out"
            )
        return [self._message(number, message) for number, message in enumerate(returned)]

    def _message(self, number: int, message: Any) -> dict[str, str]:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise RowRenderError(
                f"{self.name}() returned a list whose item {number} is {_kind(message)}: a message is "
                '{"role": …, "content": …} and nothing else'
            )
        role, content = message["role"], message["content"]
        if role not in _ROLES:
            raise RowRenderError(
                f"{self.name}() returned a message {number} whose role is none of {', '.join(_ROLES)}"
            )
        if not isinstance(content, str) or not content.strip():
            raise RowRenderError(
                f"{self.name}() returned a message {number} whose content is {_kind(content)}: give a text that is not "
                "blank"
            )
        return {"role": role, "content": clean_text(content)}

    def check_steady(self, row: dict[str, Any]) -> None:
        """Refuse a function that does not say the same about the same row: every run would pay for every row again.

        :raises LLMInputError: naming the function.
        """
        try:
            steady = self.messages(dict(row)) == self.messages(dict(row))
        except RowRenderError:
            # This row has no messages; which rows have none is told for each.
            return
        if not steady:
            raise LLMInputError(
                f"{self.name}() returns different messages for the same row, as with a clock or a random number: every "
                "run would ask and pay for every row anew; take what changes from a column of the source"
            )


def check_function(function: Any) -> None:
    """Refuse what cannot be called with one row.

    :raises LLMInputError: naming the function and the remedy.
    """
    import inspect  # noqa: PLC0415 -- DAG files that use templates need not pay for it

    name = _name_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise LLMInputError(f"the prompt {name}() is a coroutine or a generator: give a plain function")
    if inspect.isclass(function):
        raise LLMInputError(f"the prompt {name} is a class: give a function of one row")
    try:
        inspect.signature(function).bind({})
    except (TypeError, ValueError) as error:
        raise LLMInputError(
            f"the prompt {name}() cannot be called with one row ({error}): give a function with one parameter, the row "
            "as a dict; what else it needs, give it by a closure or functools.partial"
        ) from error


def _name_of(function: Any) -> str:
    inner = innermost(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _line_in(code: CodeType | None, trace: TracebackType | None) -> int | None:
    """Return the line of the function itself at which an error passed through it."""
    while trace is not None:
        if trace.tb_frame.f_code is code:
            return trace.tb_lineno
        trace = trace.tb_next
    return None


def _kind(value: Any) -> str:
    if isinstance(value, (str, list, tuple)) and not (value.strip() if isinstance(value, str) else value):
        return f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"
