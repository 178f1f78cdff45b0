"""Parquet files of records, read by PyArrow with limits on what they unpack to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from shuffle_ledger.cli.failures import FileRefused
from shuffle_ledger.cli.files.typed_cells import day_or_moment

UNPACKED_BYTES_MAX = 256 * 1024 * 1024  # of all columns of a file, as its footer declares them
_INDEX = "__index_level_"  # how the names of columns begin in which pandas keeps the index of a DataFrame
_DAMAGED = "a Parquet file that cannot be read; it may be damaged or encrypted"


def parquet_rows(path: Path, data: bytes, wanted: Collection[str], *, rows_max: int) -> Iterator[list[Any]]:
    """Yields the names of the columns, then the rows.

    Args:
        path: the file, for messages.
        data: its content.
        wanted: names of the columns to read; None stands in the cells of the others.
        rows_max: how many rows a file may have.

    Raises:
        FileRefused: not to be read, too large, or a wanted column of a type that no field of a round has.
        ModuleNotFoundError: PyArrow is not installed.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra, and a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        _refuse_large(path, file.metadata, rows_max)
        schema = file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise FileRefused(f"{path}: {_DAMAGED}") from problem
    shown = [place for place, name in enumerate(schema.names) if not name.startswith(_INDEX)]
    yield [schema.names[place] for place in shown]
    read = [place for place in shown if schema.names[place] in wanted]
    for place in read:
        _refuse_type(path, schema.field(place))
    try:
        columns = _columns(data, [schema.names[place] for place in read])
    except (pa.ArrowException, OSError, ValueError, OverflowError) as problem:
        raise FileRefused(f"{path}: {_DAMAGED}") from problem
    order = [read.index(place) if place in read else None for place in shown]
    for cells in zip(*columns, strict=True):
        yield [None if place is None else cells[place] for place in order]


def _refuse_large(path: Path, metadata: Any, rows_max: int) -> None:
    if metadata.num_rows > rows_max:
        raise FileRefused(f"{path}: {metadata.num_rows:,} records, expected at most {rows_max:,}; split it")
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    if size > UNPACKED_BYTES_MAX:
        raise FileRefused(
            f"{path}: {size:,} bytes without compression, expected at most {UNPACKED_BYTES_MAX:,}; split it"
        )


def _refuse_type(path: Path, field: Any) -> None:
    import pyarrow.types as kinds  # noqa: PLC0415 - as above

    type_ = field.type.value_type if kinds.is_dictionary(field.type) else field.type
    if kinds.is_float16(type_) or kinds.is_float32(type_):
        expected = "double or int64: numbers of single precision are rounded"
    elif any(
        is_kind(type_)
        for is_kind in (
            kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_integer, kinds.is_float64,
            kinds.is_decimal, kinds.is_date, kinds.is_timestamp, kinds.is_null,
        )
    ):  # fmt: skip
        return
    else:
        expected = "texts, numbers or dates"
    raise FileRefused(f"{path}: column {field.name!r} is of type {field.type}, expected {expected}")


def _columns(data: bytes, names: list[str]) -> list[list[object]]:
    """Returns the cells of some columns. Equal texts stay one object: a short file may repeat a long text."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    table = pq.ParquetFile(pa.BufferReader(data), read_dictionary=names).read(columns=names)
    return [[cell for chunk in table.column(name).chunks for cell in _cells(chunk)] for name in names]


def _cells(chunk: Any) -> Iterator[object]:
    import pyarrow as pa  # noqa: PLC0415 - as above

    if pa.types.is_dictionary(chunk.type):
        known = [_plain(value) for value in chunk.dictionary.to_pylist()]
        yield from (None if index is None else known[index] for index in chunk.indices.to_pylist())
        return
    if pa.types.is_timestamp(chunk.type):  # Python's moments have no nanoseconds
        chunk = chunk.cast(pa.timestamp("us", chunk.type.tz), safe=False)
    yield from map(_plain, chunk.to_pylist())


def _plain(value: object) -> object:
    """Returns a cell as workbooks and CSV have it; midnight without a zone, or in UTC, is the date."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime):
        return day_or_moment(value)
    return value
