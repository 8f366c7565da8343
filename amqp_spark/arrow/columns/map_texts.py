"""Headers of many messages as MAP<STRING, STRING>: every value as text.

The rules are those of :func:`amqp_spark.arrow.columns.values.as_text`; the common types are converted a column at a
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from amqp_core.v0_10 import type_codes as code
from amqp_spark.arrow.columns import arrays
from amqp_spark.arrow.columns.conversion import ConversionError
from amqp_spark.arrow.columns.headers import READ, TEXT_SIZES
from amqp_spark.arrow.columns.values import INTEGERS, as_text, float_text
from amqp_spark.arrow.without_pandas import bits, buffer, from_numpy, single, to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.conversion import Errors
    from amqp_spark.arrow.columns.headers import Entries
    from amqp_spark.arrow.columns.wire import Mask, Positions, Wire

_LEAST_ALIKE: Final = 1e-4
_ALIKE_BELOW: Final = 1e10


def texts(wire: Wire, found: Entries, absent: Mask | None, arrow: pa.MapType[Any, Any], unit: str) -> Column | None:
    """The column of these entries; None if a map has a key twice or one that is no text: convert each map alone."""
    bounds, key_at, code_at, after, kinds, examples = found
    few = slice(None) if examples is None else examples
    keys, bad_keys = arrays.text(arrays.binary(wire, key_at[few], code_at[few], None))
    if bad_keys or _twice(_rows(bounds)[few], keys):
        return None
    codes = wire.size(1, code_at[few])
    if kinds is not None:
        keys, codes = arrays.take(keys, kinds), codes[kinds]
    values, bad_values = _texts(wire, code_at, codes, after, unit)
    errors: Errors = {}
    for entry, reason in bad_values.items():
        row = int(np.searchsorted(bounds, entry, "right")) - 1
        errors.setdefault(row, f"{keys[entry].as_py()}: {reason}")
    rows = len(bounds) - 1
    validity = None if absent is None else bits(~absent)
    items = pa.StructArray.from_arrays([keys, values], fields=[arrow.key_field, arrow.item_field])
    offsets = buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(arrow, rows, [validity, offsets], children=[items]), errors


def _rows(bounds: Positions) -> Positions:
    """The map of every entry."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def _twice(rows: Positions, keys: Array) -> bool:
    if not len(rows):
        return False
    encoded = keys.dictionary_encode()
    pairs = np.sort(rows * len(encoded.dictionary) + to_numpy(encoded.indices).astype(np.int64), kind="stable")
    return bool((pairs[1:] == pairs[:-1]).any())


def _texts(wire: Wire, code_at: Positions, codes: Positions, after: Positions, unit: str) -> Column:
    """The texts of values of mixed types: converted type by type, then put back in order."""
    parts: list[Array] = []
    places: list[Positions] = []
    errors: Errors = {}
    for number in np.flatnonzero(np.bincount(codes)).tolist():
        place = np.flatnonzero(codes == number)
        if wire.dialect.kinds[number] == code.DOUBLE:
            for part, rows in _float_texts(wire.read(">f8", code_at[place] + 1).astype(np.float64)):
                parts.append(part)
                places.append(place[rows])
            continue
        part, wrong = _texts_of(wire, number, code_at[place], after[place], unit)
        errors.update({int(place[index]): reason for index, reason in wrong.items()})
        parts.append(part)
        places.append(place)
    if len(parts) == 1:
        return parts[0], errors
    if not parts:
        return arrays.nulls(0, pa.string())
    order = np.empty(len(codes), np.int64)
    index = 0
    for part, place in zip(parts, places, strict=True):
        order[place] = np.arange(index, index + len(part))
        index += len(part)
    return arrays.take(pa.concat_arrays(parts), order), errors


def _float_texts(values: npt.NDArray[np.float64]) -> Iterator[tuple[Array, slice | Positions]]:
    """Texts as :func:`.values.float_text` writes them, in parts; a row of a later part replaces that of an earlier one.

    Arrow writes the same digits. It leaves ".0" out, and outside of the range below it chooses between the forms with
    and without an exponent by another rule.
    """
    yield from_numpy(values).cast(pa.string()), slice(None)
    with np.errstate(invalid="ignore"):  # signalling NaN
        size = np.abs(values)
        whole = np.trunc(values) == values
    alike = (size >= _LEAST_ALIKE) & (size < _ALIKE_BELOW) | (size == 0) & ~np.signbit(values)
    rows = np.flatnonzero(whole & alike)
    if len(rows):
        import pyarrow.compute as pc  # noqa: PLC0415 - not needed to start, and it takes 70 ms

        digits: Any = from_numpy(values[rows].astype(np.int64)).cast(pa.string())
        yield cast("Any", pc).binary_join_element_wise(digits, single(".0")[0], single("")[0]), rows
    if not alike.all():
        rows = np.flatnonzero(~alike)
        yield pa.array([float_text(value) for value in values[rows].tolist()], pa.string()), rows


def _texts_of(wire: Wire, number: int, code_at: Positions, after: Positions, unit: str) -> Column:
    number = wire.dialect.kinds[number]
    at = code_at + 1
    width = TEXT_SIZES.get(number)
    if width is not None:
        column, errors = arrays.text(arrays.binary(wire, at + width, after, None))
        if not errors:
            return column, errors
    elif number in INTEGERS:
        native = wire.read(READ[number], at).astype(READ[number].replace(">", "="))
        return from_numpy(native).cast(pa.string()), {}
    elif number == code.BOOLEAN:
        return from_numpy(wire.size(1, at) != 0).cast(pa.string()), {}
    errors = {}
    values: list[str | None] = []
    for index, (begin, end) in enumerate(zip(code_at.tolist(), after.tolist(), strict=True)):
        value = None
        try:
            value = as_text(wire.dialect.value_at(wire.data, begin, end), unit)
        except ConversionError as bad:
            errors[index] = str(bad)
        values.append(value)
    return pa.array(values, pa.string()), errors
