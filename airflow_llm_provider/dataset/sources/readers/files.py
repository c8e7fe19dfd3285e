"""Input files as streams: decompressed, and decoded by their byte order mark."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from airflow_llm_provider.dataset.files.absence import other_cause
from airflow_llm_provider.dataset.files.urls import public_uri, reason
from airflow_llm_provider.errors import LLMError, LLMInputError, LLMStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

    from airflow_llm_provider.dataset.sources.listing import SourceFile

_BUFFER = 1 << 20
#: UTF-32's little-endian mark begins with UTF-16's, so it comes first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Files:
    """Opens input files.

    :param fs: their filesystem.
    :param files: the files, in order.
    :param encoding: how text is encoded when there is no byte order mark.
    """

    def __init__(self, fs: AbstractFileSystem, files: tuple[SourceFile, ...], encoding: str) -> None:
        self._fs = fs
        self._encoding = encoding
        self.files = files
        try:
            # Python has codecs that are no text encodings, such as base64.
            "".encode(encoding)
        except (LookupError, ValueError) as error:
            raise LLMInputError(
                f"encoding is {encoding!r}, which is no text encoding that Python knows: give a name such as 'utf-8', "
                "'gbk' or 'cp1252'"
            ) from error

    @contextmanager
    def open_raw(self, file: SourceFile) -> Iterator[Any]:
        """Open the file as it is."""
        with ExitStack() as stack:
            with self.reading(file):
                stream = stack.enter_context(self._fs.open(file.path, "rb"))
            yield stream

    @contextmanager
    def open_parquet(self, file: SourceFile, **options: Any) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file; a local one by its path, which Arrow reads without Python."""
        with ExitStack() as stack:
            with self.reading(file):
                local = isinstance(self._fs, LocalFileSystem)
                source = file.path if local else stack.enter_context(self._fs.open(file.path, "rb"))
                parquet = stack.enter_context(pq.ParquetFile(source, **options))
            yield parquet

    @contextmanager
    def open_orc(self, file: SourceFile, make: Callable[[Any], Any]) -> Iterator[Any]:
        """Open an ORC file; a local one by its path, which Arrow reads without Python.

        :param make: Arrow's class of ORC files.
        """
        with ExitStack() as stack:
            with self.reading(file):
                local = isinstance(self._fs, LocalFileSystem)
                orc = make(file.path if local else stack.enter_context(self._fs.open(file.path, "rb")))
            yield orc

    @contextmanager
    def open_binary(self, file: SourceFile) -> Iterator[io.BufferedReader]:
        """Open the file's bytes, decompressed when its name ends in ``.gz`` or ``.zst``."""
        with self.open_raw(file) as raw, _decompressed(raw, file.path) as stream:
            yield stream

    @contextmanager
    def open_text(self, file: SourceFile) -> Iterator[IO[str]]:
        """Open the file's text, with line ends as they are."""
        with self.open_binary(file) as stream:
            yield io.TextIOWrapper(stream, encoding=self.encoding_of(stream), errors="strict", newline="")

    def encoding_of(self, stream: io.BufferedReader) -> str:
        """Return the encoding that a byte order mark states, or the given one."""
        start = stream.peek(4)
        for mark, encoding in _MARKS:
            if start.startswith(mark):
                return encoding
        return self._encoding

    @contextmanager
    def reading(self, file: SourceFile, what: str = "") -> Iterator[None]:
        """Say which file an error belongs to: damaged content is the input's fault, the rest the storage's."""
        try:
            yield
        except LLMError:
            raise
        except (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowInvalid) as error:
            raise LLMInputError(
                f"{public_uri(file.uri)}{what} is damaged or cut short: {reason(error)}"
            ) from error
        except UnicodeError as error:
            # Not one byte, but the file as a whole: UTF-16 without a byte order mark, for instance.
            raise LLMInputError(
                f"{public_uri(file.uri)}{what} is not {self._encoding} ({reason(error)}): give the file's encoding=, such "
                "as 'utf-16-le'"
            ) from error
        except FileNotFoundError as error:
            cause = other_cause(error)
            if cause is not None:
                raise LLMStateError(
                    f"{public_uri(file.uri)}{what} could not be read: {reason(cause)}"
                ) from error
            raise LLMStateError(f"{public_uri(file.uri)} is gone since it was listed: run again") from error
        except OSError as error:
            damaged = type(error) is OSError and error.errno is None
            kind = LLMInputError if damaged else LLMStateError
            raise kind(f"{public_uri(file.uri)}{what} could not be read: {reason(error)}") from error
        except Exception as error:
            # Clients of object stores have errors of their own for a network that is down.
            raise LLMStateError(f"{public_uri(file.uri)}{what} could not be read: {reason(error)}") from error

    def undecodable(self, file: SourceFile) -> tuple[int, int, str]:
        """Find the first byte that is not valid in the file's encoding: its offset, its value and the encoding."""
        with self.open_binary(file) as stream:
            encoding = self.encoding_of(stream)
            decoder = codecs.getincrementaldecoder(encoding)("strict")
            read = 0
            while True:
                chunk = stream.read(_BUFFER)
                held = len(decoder.getstate()[0])
                try:
                    decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    return read - held + error.start, error.object[error.start], encoding
                if not chunk:
                    return read, 0, encoding
                read += len(chunk)


class _Stream(io.RawIOBase):
    """An Arrow stream as a Python one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _decompressed(raw: Any, path: str) -> Iterator[io.BufferedReader]:
    lower = path.lower()
    if lower.endswith(".gz"):
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield io.BufferedReader(unpacked, _BUFFER)
    elif lower.endswith(".zst"):
        with pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd") as unpacked:
            yield io.BufferedReader(_Stream(unpacked), _BUFFER)
    else:
        yield raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(_Stream(raw), _BUFFER)
