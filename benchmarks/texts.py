"""Texts to measure with: made up, the same on every machine, kept in a temporary folder once made."""
# ruff: noqa: RUF001, SIM905 -- Chinese has its own punctuation, and word lists read better as text

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Change it when the texts change.
_EDITION = 2
#: Rows of one row group.
_WRITE_ROWS = 10_000
_WRITE_DOCUMENTS = 100
_DOCUMENT_BYTES = 200_000
_COMMON = (
    "the a of to and in is for on with that it as was are be this have from or by not but at which you we they an has "
    "had their more will other about when after before order account invoice payment customer support ticket shipping "
    "delivery refund password login error message server update version screen button device battery charger broken "
    "missing wrong late address number please thanks again still never always because could should would problem issue "
    "question request response product quality price discount subscription cancel renew upgrade install download "
    "connection network timeout slow fast email phone called waited minutes hours days weeks month year team manager"
).split()
_STEMS = "trans inter over under micro multi photo electro hydro thermo bio geo psycho auto tele".split()
_ENDS = "mission lation graphic metric logical formation ception struction ducer dynamics synthesis scope fication".split()
_CHINESE = (
    "我们 你们 客户 订单 支付 退款 快递 地址 电话 问题 谢谢 请问 什么 时候 已经 没有 收到 商品 质量 价格 优惠 账户 密码 登录 错误 系统 更新 版本 "
    "屏幕 按钮 设备 电池 充电 损坏 缺少 等待 小时 分钟 昨天 今天 明天 非常 不满 希望 尽快 处理 联系 客服 经理 服务 网络 连接 超时 取消 续费 升级 安装 "
    "下载 因为 所以 但是 如果 可以 不能 应该 还是 一直 再次 发票 税号 公司 北京 上海 深圳"
).split()
_STOPS = ("，", "。", "！", "；")


def short_texts(rows: int) -> str:
    """Return the path of a Parquet file of support tickets, English, Chinese or both: ``id``, ``subject``, ``body``."""
    return _kept(f"short-{rows}", lambda: _short_batches(rows))


def documents(rows: int) -> str:
    """Return the path of a Parquet file of documents of 200 kB each: ``id``, ``body``."""
    return _kept(f"documents-{rows}", lambda: _document_batches(rows))


def folder() -> Path:
    """Return the folder for what is kept between runs."""
    path = Path(tempfile.gettempdir()) / f"airflow-llm-provider-benchmarks-{os.getuid()}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _kept(name: str, make: Callable[[], Iterator[pa.RecordBatch]]) -> str:
    path = folder() / f"{name}-{_EDITION}.parquet"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}")
        batches = make()
        first = next(batches)
        with pq.ParquetWriter(partial, first.schema, compression="zstd") as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
        partial.replace(path)
    return str(path)


def _short_batches(rows: int) -> Iterator[pa.RecordBatch]:
    rng = random.Random(20_251)  # noqa: S311 -- texts, not secrets
    for start in range(0, rows, _WRITE_ROWS):
        numbers = range(start, min(start + _WRITE_ROWS, rows))
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array(numbers, pa.int64()),
                "subject": [f"#{number} {_sentence(rng, rng.randint(3, 8))}" for number in numbers],
                "body": [_paragraph(rng, rng.randint(2, 6)) for _ in numbers],
            }
        )


def _document_batches(rows: int) -> Iterator[pa.RecordBatch]:
    rng = random.Random(20_252)  # noqa: S311 -- texts, not secrets
    for start in range(0, rows, _WRITE_DOCUMENTS):
        numbers = range(start, min(start + _WRITE_DOCUMENTS, rows))
        yield pa.RecordBatch.from_pydict(
            {"id": pa.array(numbers, pa.int64()), "body": [_document(rng) for _ in numbers]}
        )


def _document(rng: random.Random) -> str:
    paragraphs, size = [], 0
    while size < _DOCUMENT_BYTES:
        paragraphs.append(_paragraph(rng, rng.randint(4, 12)))
        size += len(paragraphs[-1].encode()) + 2
    return "\n\n".join(paragraphs)


def _paragraph(rng: random.Random, sentences: int) -> str:
    return " ".join(_sentence(rng, rng.randint(6, 14)) for _ in range(sentences))


def _sentence(rng: random.Random, words: int) -> str:
    if rng.random() < 0.3:
        return "".join(rng.choices(_CHINESE, k=words)) + rng.choice(_STOPS)
    text = " ".join(_word(rng) for _ in range(words))
    return f"{text[:1].upper()}{text[1:]}{rng.choice('...?!')}"


def _word(rng: random.Random) -> str:
    """Choose a word as tickets have them: mostly common ones, some that no vocabulary holds whole."""
    chance = rng.random()
    if chance < 0.85:
        return rng.choice(_COMMON)
    if chance < 0.93:
        return rng.choice(_STEMS) + rng.choice(_ENDS)
    if chance < 0.96:
        return str(rng.randint(0, 99_999))
    if chance < 0.98:
        return f"INV-{rng.randrange(16**8):08X}"
    return rng.choice(_CHINESE)
