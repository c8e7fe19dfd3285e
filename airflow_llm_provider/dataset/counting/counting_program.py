"""A program that counts the texts that come in, with the machine code of bpe-openai, until no more come.

It is run by its path and loads the standard library only, so that it counts a tenth of a second after its start.
"""

from __future__ import annotations

import importlib.util
import marshal
import signal
import sys
from typing import IO, Any

_MODULE = "bpe_openai._bindings"
_LENGTH_BYTES = 8


def load_bindings(file: str) -> Any:
    """Load the machine code alone: the package itself takes seconds and 60 MB for tables that nobody asks for here.

    :raises ImportError: when it cannot be loaded.
    """
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def send(pipe: IO[bytes], value: Any) -> None:
    """Write a value for another process of the same Python."""
    data = marshal.dumps(value)
    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "little"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read the next value.

    :raises EOFError: when the other process has gone, or sends no more.
    """
    length = int.from_bytes(_read(pipe, _LENGTH_BYTES), "little")
    return marshal.loads(_read(pipe, length))  # noqa: S302 -- of a process of our own


def _read(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main(file: str, encoding: str) -> None:
    """Answer each list of texts with their counts, or with ``None`` where one cannot be counted."""
    # Ctrl-C goes to all processes of a terminal; the one that started this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    count = load_bindings(file).tokenizer_for_encoding(encoding).count
    while True:
        try:
            texts = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            counts = [count(text) for text in texts]
        except UnicodeEncodeError:
            counts = None
        send(sys.stdout.buffer, counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
