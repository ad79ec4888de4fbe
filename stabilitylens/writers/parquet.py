"""Parquet, a row a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from stabilitylens.errors import BadInput
from stabilitylens.run import Run, Series
from stabilitylens.writers._exporter import axes_of, chunks, exporter

if TYPE_CHECKING:
    import pyarrow


@exporter("parquet")
def write(run: Run, stream: BinaryIO) -> None:
    """A long table: ``step``, ``series``, a column for each axis (from 0, null where a series has none), ``value``.

    The run's header is in the file's metadata, as JSON under ``stabilitylens``.

    Raises:
        stabilitylens.errors.BadInput: pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise BadInput("writing Parquet needs pyarrow: pip install 'stabilitylens[arrow]'") from error
    axes = axes_of(run)
    fields = [("step", arrow.int64()), ("series", arrow.dictionary(arrow.int32(), arrow.string()))]
    fields += [*((axis, arrow.int32()) for axis in axes), ("value", arrow.float64())]
    schema = arrow.schema(fields, metadata={"stabilitylens": run.header.to_json()})
    with parquet.ParquetWriter(stream, schema) as out:
        for series in run.series.values():
            for part in chunks(series):
                out.write_table(arrow.table(_columns(part, axes, arrow), schema=schema))


def _columns(part: Series, axes: list[str], arrow: Any) -> dict[str, pyarrow.Array]:
    where = np.indices(part.values.shape).reshape(part.values.ndim, -1)
    n = part.values.size
    names = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(n, dtype=np.int32)), arrow.array([part.name]))
    places = {axis: arrow.array(where[1 + i].astype(np.int32)) for i, axis in enumerate(part.axes)}
    missing = arrow.nulls(n, arrow.int32())
    columns = {"step": arrow.array(part.steps[where[0]].astype(np.int64)), "series": names}
    columns |= {axis: places.get(axis, missing) for axis in axes}
    return columns | {"value": arrow.array(part.values.ravel().astype(np.float64))}
