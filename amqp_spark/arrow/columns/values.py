"""Values of AMQP maps, one at a time: as text, as JSON, and as Spark types, widened only without loss.

The slow and complete conversion; :mod:`.headers` converts the common types a whole column at once by the same rules.
Texts and bytes of messages are never quoted in a reason: they may be secret, and errors are logged.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from struct import pack, unpack
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10.type_codes import Typed
from amqp_spark.arrow.columns.conversion import ConversionError, microseconds
from amqp_spark.arrow.columns.variant import encode

Converter: TypeAlias = Callable[[Typed], Any]

INTEGERS: Final = frozenset(
    (code.INT8, code.INT16, code.INT32, code.INT64, code.UINT8, code.UINT16, code.UINT32, code.UINT64)
)
TEXTS: Final = frozenset(
    (
        *(code.CHAR, code.CHAR_UTF32, code.STR8_LATIN, code.STR8, code.STR8_UTF16),
        *(code.STR16_LATIN, code.STR16, code.STR16_UTF16),
    )
)
BYTE_CODES: Final = frozenset(
    (
        *(code.BIN8, code.BIN16, code.BIN32, code.BIN40, code.BIN64, code.BIN72, code.BIN128, code.BIN256),
        *(code.BIN512, code.BIN1024, code.VBIN8, code.VBIN16, code.VBIN32),
    )
)
_NAMES: Final[dict[int, str]] = {
    number: name.rstrip("_").lower().replace("_", "-")
    for name, number in vars(code).items()
    if name.isupper() and isinstance(number, int) and name != "MAX_DEPTH"
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?:(:\d\d)(?:\.(\d{1,6})0*)?)?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_EXACT: Final = Context(prec=80, traps=[Inexact, InvalidOperation])


def name_of(number: int) -> str:
    """The specification's name of a type code."""
    return _NAMES.get(number, f"type 0x{number:02x}")


def describe(typed: Typed) -> str:
    """Type and, if it is a number, value."""
    value = typed.value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return f"{name_of(typed.code)} {value}"
    return name_of(typed.code)


# ---- text and JSON -------------------------------------------------------------------------------------------------


def float_text(value: float, *, single: bool = False) -> str:
    """The shortest text that reads back as the same number; NaN, Infinity and -Infinity as Spark writes them."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if single:
        for digits in range(1, 10):
            shorter = float(f"{value:.{digits}g}")
            if _as_single(shorter) == value:
                return repr(shorter)
    return repr(value)


def _as_single(value: float) -> float:
    """The nearest number that a float holds; infinity if it is beyond the largest one."""
    try:
        return cast("float", unpack(">f", pack(">f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def time_text(number: int, unit: str) -> str:
    """ISO 8601 in UTC, to the second or as exact as the number; the number itself if it is out of range."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds(number, unit))
    except (ConversionError, OverflowError):
        return str(number)
    return moment.isoformat().replace("+00:00", "Z")


def as_text(typed: Typed, unit: str) -> str | None:  # noqa: PLR0911 - one line per type
    """Any value as text; void is None, values without a scalar form are JSON."""
    value = typed.value
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return time_text(value, unit) if typed.code == code.DATETIME else str(int(value))
        case float():
            return float_text(value, single=typed.code == code.FLOAT)
        case Decimal():
            return f"{value:f}"
        case UUID():
            return str(value)
        case bytes() if typed.code != code.STRUCT32:
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
    return json.dumps(_jsonable(typed, unit), ensure_ascii=False, separators=(",", ":"))


def _jsonable(typed: Typed, unit: str) -> object:  # noqa: PLR0911
    value = typed.value
    match value:
        case dict():
            return {key: _jsonable(item, unit) for key, item in value.items()}
        case list():
            return [_jsonable(item, unit) for item in value]
        case bytes():
            text = None
            if typed.code != code.STRUCT32:
                try:
                    text = value.decode()
                except UnicodeDecodeError:
                    pass
            return {"base64": base64.b64encode(value).decode()} if text is None else text
        case float() if math.isfinite(value):
            return float(float_text(value, single=typed.code == code.FLOAT))
        case None | bool() | str():
            return value
        case int() if typed.code != code.DATETIME:
            return int(value)
    return as_text(typed, unit)


# ---- types of Spark ------------------------------------------------------------------------------------------------


def converter(kind: t.DataType, unit: str) -> Converter:
    """A function from a wire value to the input of ``pyarrow.array`` for a type that the schema check accepts.

    It returns None for void, and raises ConversionError.
    """
    convert = _converter(kind, unit)

    def checked(typed: Typed) -> Any:
        return None if typed.code == code.VOID else convert(typed)

    return checked


def _converter(kind: t.DataType, unit: str) -> Converter:  # noqa: PLR0911 - a table of classes and their subclasses
    match kind:
        case t.StructType():
            return _struct(kind, unit)
        case t.ArrayType():
            return _array(kind, unit)
        case t.MapType():
            return _map(kind, unit)
        case t.VariantType():
            return lambda typed: encode(typed, unit)
        case t.DecimalType():
            return lambda typed: _decimal(typed, kind.precision, kind.scale)
        case t.StringType():
            return _string
        case _:
            return _SCALARS[type(kind)](kind, unit)


def _integer(kind: t.DataType, _: str) -> Converter:
    bits = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}[type(kind)]  # type: ignore[index]
    limit = 1 << (bits - 1)
    name = _sql(kind)

    def convert(typed: Typed) -> int:
        if typed.code not in INTEGERS:
            raise ConversionError(f"{describe(typed)} is not an integer, {name} was asked for")
        number = cast("int", typed.value)
        if not -limit <= number < limit:
            raise ConversionError(f"{describe(typed)} does not fit {name}")
        return number

    return convert


def _floating(kind: t.DataType, _: str) -> Converter:
    single = isinstance(kind, t.FloatType)
    name = _sql(kind)

    def convert(typed: Typed) -> float:
        value = typed.value
        if typed.code not in INTEGERS and typed.code not in (code.FLOAT, code.DOUBLE):
            raise ConversionError(f"{describe(typed)} is not a number, {name} was asked for")
        number = float(cast("float", value))
        if single and typed.code != code.FLOAT and math.isfinite(number):
            try:
                number = unpack(">f", pack(">f", number))[0]
            except OverflowError:
                raise ConversionError(f"{describe(typed)} does not fit {name}") from None
        if number != value and number == number:  # noqa: PLR0124 - NaN is not equal to itself
            raise ConversionError(f"{describe(typed)} is not exact as {name}")
        return number

    return convert


def _boolean(_: t.DataType, __: str) -> Converter:
    def convert(typed: Typed) -> bool:
        if not isinstance(typed.value, bool):
            raise ConversionError(f"{describe(typed)} is not a boolean")
        return typed.value

    return convert


def _string(typed: Typed) -> str:
    value = typed.value
    if typed.code in TEXTS:
        return cast("str", value)
    if typed.code in BYTE_CODES:
        raw = cast("bytes", value)
        try:
            return raw.decode()
        except UnicodeDecodeError as bad:
            raise ConversionError(f"its {len(raw)} bytes are not UTF-8: {bad.reason} at byte {bad.start}") from None
    if isinstance(value, UUID):
        return str(value)
    raise ConversionError(f"{describe(typed)} is not a text, STRING was asked for")


def _binary(_: t.DataType, __: str) -> Converter:
    def convert(typed: Typed) -> bytes:
        value = typed.value
        if typed.code in BYTE_CODES:
            return cast("bytes", value)
        if typed.code in TEXTS:
            return cast("str", value).encode()
        if isinstance(value, UUID):
            return value.bytes
        raise ConversionError(f"{describe(typed)} is not opaque, BINARY was asked for")

    return convert


def _decimal(typed: Typed, precision: int, scale: int) -> Decimal:
    value = typed.value
    name = f"DECIMAL({precision},{scale})"
    if typed.code in TEXTS:
        text = cast("str", value)
        if not _DECIMAL.fullmatch(text):
            raise ConversionError(f"{describe(typed)} is not the text of a decimal, {name} was asked for")
        value = Decimal(text)
    elif typed.code in INTEGERS:
        value = Decimal(cast("int", value))
    if not isinstance(value, Decimal):
        raise ConversionError(f"{describe(typed)} is not a decimal, {name} was asked for")
    try:
        exact = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except DecimalException:
        raise ConversionError(f"{describe(typed)} is not exact as {name}") from None
    if exact.adjusted() + scale >= precision and exact:
        raise ConversionError(f"{describe(typed)} does not fit {name}")
    return exact


def _moment(typed: Typed, unit: str, name: str, *, zone: bool) -> int:
    """Microseconds since 1970."""
    if typed.code == code.DATETIME or typed.code in INTEGERS:
        return microseconds(cast("int", typed.value), unit)
    if typed.code in TEXTS:
        return _iso(cast("str", typed.value), typed, name, zone=zone)
    raise ConversionError(f"{describe(typed)} is not a time, {name} was asked for")


def _iso(text: str, typed: Typed, name: str, *, zone: bool) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ConversionError(f"{describe(typed)} is not an ISO 8601 time of microseconds, {name} was asked for")
    day, clock, seconds, fraction, offset = match.groups()
    if offset and not zone:
        raise ConversionError(f"{describe(typed)} has a time zone, {name} was asked for")
    zoned = "+00:00" if offset in (None, "Z") else offset
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}{seconds or ''}{zoned}")
    except ValueError as bad:
        raise ConversionError(f"{describe(typed)} is no time: {bad}") from None
    try:
        moment.astimezone(UTC)
    except OverflowError:  # because of its offset
        raise ConversionError(f"{describe(typed)} is no time of the years 1 to 9999") from None
    elapsed = moment - _EPOCH
    return elapsed // timedelta(microseconds=1) + int((fraction or "0").ljust(6, "0"))


def _timestamp(kind: t.DataType, unit: str) -> Converter:
    zone = isinstance(kind, t.TimestampType)
    return lambda typed: _moment(typed, unit, _sql(kind), zone=zone)


def _date(_: t.DataType, unit: str) -> Converter:
    day = 86_400_000_000

    def convert(typed: Typed) -> int:
        if typed.code in TEXTS:
            text = cast("str", typed.value)
            if not _DATE.fullmatch(text):
                raise ConversionError(f"{describe(typed)} is not an ISO 8601 date, DATE was asked for")
            try:
                return (date.fromisoformat(text) - _EPOCH.date()).days
            except ValueError as bad:
                raise ConversionError(f"{describe(typed)} is no date: {bad}") from None
        moment = _moment(typed, unit, "DATE", zone=True)
        if moment % day:
            raise ConversionError(f"{describe(typed)} is not the start of a day, DATE was asked for")
        return moment // day

    return convert


def _struct(kind: t.StructType, unit: str) -> Converter:
    fields = [(f.name, converter(f.dataType, unit), f.nullable) for f in kind.fields]
    void = Typed(code.VOID, None)

    def convert(typed: Typed) -> dict[str, Any]:
        if typed.code != code.MAP:
            raise ConversionError(f"{describe(typed)} is not a map, STRUCT was asked for")
        items = cast("dict[str, Typed]", typed.value)
        out: dict[str, Any] = {}
        for name, one, nullable in fields:
            try:
                out[name] = one(items.get(name, void))
            except ConversionError as bad:
                raise ConversionError(f"{name}: {bad}") from None
            if out[name] is None and not nullable:
                raise ConversionError(f"{name}: absent, and NOT NULL was asked for")
        return out

    return convert


def _array(kind: t.ArrayType, unit: str) -> Converter:
    one = converter(kind.elementType, unit)

    def convert(typed: Typed) -> list[Any]:
        if typed.code not in (code.LIST, code.ARRAY):
            raise ConversionError(f"{describe(typed)} is neither list nor array, ARRAY was asked for")
        items = [one(item) for item in cast("list[Typed]", typed.value)]
        if not kind.containsNull and None in items:
            raise ConversionError("it holds void, and NOT NULL elements were asked for")
        return items

    return convert


def _map(kind: t.MapType, unit: str) -> Converter:
    # A map of texts takes every value, as the contract for headers without their own schema.
    one: Converter
    if isinstance(kind.valueType, t.StringType):

        def one(typed: Typed) -> Any:
            return as_text(typed, unit)

    else:
        one = converter(kind.valueType, unit)

    def convert(typed: Typed) -> list[tuple[str, Any]]:
        if typed.code != code.MAP:
            raise ConversionError(f"{describe(typed)} is not a map, MAP was asked for")
        items: list[tuple[str, Any]] = []
        for key, item in cast("dict[str, Typed]", typed.value).items():
            try:
                items.append((key, one(item)))
            except ConversionError as bad:
                raise ConversionError(f"{key}: {bad}") from None
            if items[-1][1] is None and not kind.valueContainsNull:
                raise ConversionError(f"{key}: void, and NOT NULL values were asked for")
        return items

    return convert


def _sql(kind: t.DataType) -> str:
    return kind.simpleString().upper()


_SCALARS: Final[dict[type[t.DataType], Callable[[t.DataType, str], Converter]]] = {
    t.BooleanType: _boolean,
    t.ByteType: _integer,
    t.ShortType: _integer,
    t.IntegerType: _integer,
    t.LongType: _integer,
    t.FloatType: _floating,
    t.DoubleType: _floating,
    t.BinaryType: _binary,
    t.DateType: _date,
    t.TimestampType: _timestamp,
    t.TimestampNTZType: _timestamp,
}
