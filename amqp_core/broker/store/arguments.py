"""Arguments of what was declared, as JSON: the values of both protocols come back with their types."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from amqp_core.typed_values import Datetime, Typed

if TYPE_CHECKING:
    from collections.abc import Mapping


def dumps(arguments: Mapping[str, object]) -> str:
    """Arguments as ASCII text.

    Raises:
        TypeError: a value is of no type that a protocol has.
    """
    return json.dumps(_packed(dict(arguments)))


def loads(text: str) -> dict[str, object]:
    """The arguments that ``dumps`` wrote.

    Raises:
        ValueError: the text is damaged.
    """
    [(_, table)] = json.loads(text).items()
    return {name: _unpacked(each) for name, each in table}


def _packed(value: object) -> object:  # noqa: PLR0911 - one return per type
    """JSON has null, booleans, numbers, texts and lists; all others are an object with the name of their type."""
    match value:
        case Datetime():
            return {"datetime": int(value)}
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Typed():
            return {"typed": [value.code, _packed(value.value)]}
        case list() | tuple():
            return [_packed(each) for each in value]
        case dict():
            return {"table": [[name, _packed(each)] for name, each in value.items()]}
        case bytes() | bytearray() | memoryview():
            return {"bytes": bytes(value).hex()}
        case Decimal():
            return {"decimal": str(value)}
        case UUID():
            return {"uuid": str(value)}
        case _:
            raise TypeError(f"{type(value).__name__} is no type of an argument")


def _unpacked(value: object) -> object:  # noqa: PLR0911 - one return per type
    if isinstance(value, list):
        return [_unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    match kind:
        case "table":
            return {name: _unpacked(each) for name, each in content}
        case "typed":
            code, each = content
            return Typed(code, _unpacked(each))
        case "bytes":
            return bytes.fromhex(content)
        case "datetime":
            return Datetime(content)
        case "float":
            return float(content)
        case "decimal":
            return Decimal(content)
        case "uuid":
            return UUID(content)
        case _:
            raise ValueError(f"{kind!r:.100} is no type of an argument")
