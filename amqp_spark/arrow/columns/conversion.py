"""Conversion of values in maps and lists: types that have one, its error, and times on the wire.

Times are seconds or milliseconds since 1970, as clients differ, within the years of TIMESTAMP.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pyspark.sql import types as t

from amqp_core.v0_10.type_codes import MAX_DEPTH
from amqp_spark.error_conditions import SparkCondition

AUTO_MILLISECONDS: Final = 10**11
"""Times above this are in milliseconds under ``timestampUnit=auto``: in seconds it would be the year 5138."""
EARLIEST_SECONDS: Final = -62_135_596_800
LATEST_SECONDS: Final = 253_402_300_799
"""The last second of the year 9999; the TIMESTAMP of SQL has the years 1 to 9999."""
LONGEST_KEY: Final = 0xFF
"""Maximum bytes of a str8, the type of map keys."""
_SCALARS: Final = (
    *(t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType),
    *(t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType, t.VariantType),
)
_ALLOWED: Final = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, "
    "VARIANT, ARRAY, MAP<STRING, ...>, STRUCT"
)


Errors: TypeAlias = dict[int, str]
"""Row to reason."""


class ConversionError(ValueError):
    """A value that the requested type cannot hold; the text describes the value found."""


def microseconds(number: int, unit: str) -> int:
    """Convert a time in seconds or milliseconds since 1970 (``auto``: by its size) to microseconds.

    Raises:
        ConversionError: it is outside of the years of TIMESTAMP.
    """
    milliseconds = abs(number) > AUTO_MILLISECONDS if unit == "auto" else unit == "ms"
    result = number * (1000 if milliseconds else 1_000_000)
    if not EARLIEST_SECONDS * 1_000_000 <= result < (LATEST_SECONDS + 1) * 1_000_000:
        raise ConversionError(f"{number} is no time of the years 1 to 9999")
    return result


def unsupported_parts(kind: t.DataType, path: str, *, sent: bool, depth: int = 0) -> list[str]:
    """Parts of a type that maps and lists cannot have, as texts: when they are read, or when they are sent."""

    def problem(reason: str, allowed: str) -> str:
        return SparkCondition.COLUMN_PART_UNSUPPORTED(part=path, reason=reason, allowed=allowed)

    if sent and depth >= MAX_DEPTH and isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        return [problem("maps and lists are nested too deep", f"at most {MAX_DEPTH} levels")]
    match kind:
        case t.StructType():
            names = [field.name for field in kind.fields]
            fields = [(field.dataType, f"{path}.{field.name}") for field in kind.fields]
            problems = [each for part in fields for each in unsupported_parts(*part, sent=sent, depth=depth + 1)]
            twice = sorted({name for name in names if names.count(name) > 1})
            problems += [problem(f"the field {name} occurs twice", "each field once") for name in twice]
            for name in names:
                size = len(name.encode())
                if sent and size > LONGEST_KEY:
                    reason = f"the name of a field has {size} bytes ({name[:20]}...)"
                    problems.append(problem(reason, f"at most {LONGEST_KEY} bytes as the key of a map"))
            return problems if names else [problem("it is a STRUCT without fields", "one or more fields")]
        case t.ArrayType():
            return unsupported_parts(kind.elementType, f"{path}.element", sent=sent, depth=depth + 1)
        case t.MapType():
            reason = f"the keys of a map are STRING, not {kind.keyType.simpleString()}"
            wrong = [] if isinstance(kind.keyType, t.StringType) else [problem(reason, "MAP<STRING, ...>")]
            return wrong + unsupported_parts(kind.valueType, f"{path}.value", sent=sent, depth=depth + 1)
        case _:
            how = "sent in a map or list" if sent else "read from a map"
            wrong = [problem(f"{kind.simpleString()} cannot be {how}", _ALLOWED)]
            return [] if isinstance(kind, _SCALARS) else wrong
