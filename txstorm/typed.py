"""Values and columns of declared types: the one module that converts them, checks their ranges and adds them up.

Arrow wraps without an error when it gives a decimal a larger scale or adds beyond the range of a type, and it stores
times that Python does not have. So whatever enters a typed column or an aggregate passes here, one value at a time or
as a column, and is stored as the same value, or refused, either way.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Clamped, Context, Decimal, Inexact, InvalidOperation, Overflow, Rounded, Subnormal
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.misfits import Misfit, shown

Values: TypeAlias = "pa.Array | pa.ChunkedArray"
ARROW_ERRORS = (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError, TypeError)
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], type, tuple[type, ...]], ...] = (
    (pa.types.is_boolean, bool, (bool, np.bool_)),
    (pa.types.is_integer, int, (int, np.integer)),
    (pa.types.is_floating, float, (float, int, np.floating, np.integer)),
    (pa.types.is_string, str, (str,)),
    (pa.types.is_binary, bytes, (bytes,)),
    (pa.types.is_timestamp, datetime, (datetime,)),
    (pa.types.is_date32, date, (date,)),
    (pa.types.is_decimal128, Decimal, (Decimal, int)),
    (pa.types.is_list, list, (list, tuple)),
    (pa.types.is_struct, dict, (Mapping,)),
)
_ALIASES = (
    *((pa.types.is_large_string, str), (pa.types.is_string_view, str)),
    *((pa.types.is_large_binary, bytes), (pa.types.is_binary_view, bytes)),
    (pa.types.is_date64, date),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_large_list, list),
)
_WIDENED = {(int, float), (int, Decimal)}
# Subclasses that a user regards as a different type: True is not an int here, and a datetime is not a date.
_STRANGERS: dict[type, tuple[type, ...]] = {int: (bool,), float: (bool,), Decimal: (bool,), date: (datetime,)}
_WHOLE = pa.decimal128(20, 0)
"""Type of a decimal that holds every 64-bit integer, signed or not."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIRST_SECOND = int((datetime.min.replace(tzinfo=UTC) - _EPOCH).total_seconds())
_LAST_SECOND = int((datetime.max.replace(microsecond=0, tzinfo=UTC) - _EPOCH).total_seconds())
FIRST_MICROS, LAST_MICROS = _FIRST_SECOND * 1_000_000, _LAST_SECOND * 1_000_000 + 999_999
"""Microseconds since 1970 of the first and the last time that Python has."""
_FIRST_DAY, _LAST_DAY = (one.toordinal() - _EPOCH.toordinal() for one in (date.min, date.max))
_DAY_S, _DAY_MS = 86_400, 86_400_000
_MOST_DAYS = 999_999_999
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_MOST_DIGITS = 76
"""Digits of the largest decimals of Arrow."""
_MOST_PLAIN = 38
"""Digits of the decimals that Arrow converts from Python's without wrapping."""
EXACT = Context(prec=_MOST_DIGITS)
"""Context in which decimals of Arrow are added without rounding."""
NO_TIME = "a time out of the years 1 to 9999, which Python does not have"


def python_type(kind: pa.DataType) -> type:
    """Return the Python type for values of the Arrow type `kind`; `NoneType` if it is not supported."""
    pairs = (*((fits, exact) for fits, exact, _ in _FAMILIES), *_ALIASES)
    return next((exact for fits, exact in pairs if fits(kind)), type(None))


def declaration(name: str, kind: pa.DataType) -> str | None:
    """Return how a field with values of the Arrow type `kind` is declared, for advice; None if that is impossible."""
    exact = python_type(kind.value_type if pa.types.is_dictionary(kind) else kind)
    typed = f"the type {kind} of pyarrow" if exact in (list, dict) else f"{{{name!r}: {exact.__name__}}}"
    return None if exact is type(None) else typed


# -- values ------------------------------------------------------------------------------------------------------------


def misfit(kind: pa.DataType, value: Any) -> str | None:
    """Describe why `value` does not fit the Arrow type `kind` (``"expected …, got …"``); return None if it fits.

    Ranges are not checked, except of integers that are to be floats: in structs, Arrow rounds them.
    """
    if value is None:
        return None
    exact, accepted = next((exact, accepted) for fits, exact, accepted in _FAMILIES if fits(kind))
    if not isinstance(value, accepted) or isinstance(value, _STRANGERS.get(exact, ())):
        return f"expected {exact.__name__}, got {type(value).__name__} {shown(value)}; convert it before it is written"
    if isinstance(value, datetime) and value.utcoffset() is None:
        return f"expected a datetime with a time zone, got the naive {value!r}; times are UTC: give it tzinfo=UTC"
    if exact is float and isinstance(value, int) and abs(value) > 1 << int(np.finfo(kind.to_pandas_dtype()).nmant + 1):
        return f"expected a value that fits {kind}, got {shown(value)}, an integer that it may not hold exactly"
    return _misfit_inside(kind, value) if exact in (list, dict) else None


def _misfit_inside(kind: pa.DataType, value: Any) -> str | None:
    if pa.types.is_list(kind):
        faults = (misfit(kind.value_type, item) for item in value)
    else:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if set(value) != {field.name for field in fields}:
            return f"expected a dict with {[field.name for field in fields]}, got one with {sorted(map(str, value))}"
        faults = (misfit(field.type, value[field.name]) for field in fields)
    return next((fault for fault in faults if fault), None)


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert Python values, among them None, to a column of the type `kind`.

    Raises:
        Misfit: the first value that does not fit: its type, its range, or a datetime without a time zone.
    """
    exact, kinds = python_type(kind), set(map(type, values))
    kinds.discard(type(None))
    if kinds <= {exact} and exact not in (datetime, list, dict):  # the usual case: no look at each value
        return fitting(values, kind)
    for row, value in enumerate(values):
        if fault := misfit(kind, value):
            raise Misfit(fault, row)
    return fitting([value.item() if isinstance(value, np.generic) else value for value in values], kind)


def fitting(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Like `column_of`, for values whose types are known to fit: only ranges are checked."""
    try:
        return of_values(values, kind)
    except ARROW_ERRORS as error:
        cause = error
    for row, value in enumerate(values):
        try:
            of_values([value], kind)
        except ARROW_ERRORS as error:
            raise Misfit(f"expected a value that fits {kind}, got {shown(value)} ({error})", row) from None
    raise Misfit(f"the values do not fit one column of {kind}: {cause}") from None


def sifted(
    values: Any,
    kind: pa.DataType,
    convert: Callable[[Any, pa.DataType], Values],
    bad: Callable[[], Sequence[int]] = tuple,
    doubtful: Callable[[], Sequence[int]] = tuple,
) -> tuple[Values, list[int]]:
    """Return the column that `convert` makes, with None in place of values that it cannot convert, and their rows.

    Args:
        values: a sequence, or an Arrow array.
        kind: the type of the column.
        convert: raises one of `ARROW_ERRORS` if a value cannot be converted.
        bad: returns rows that certainly cannot be converted.
        doubtful: returns rows that are tried one by one if they are few; all others are tried by halves, which costs
            more for each bad one.
    """
    wrong = list(bad())
    values = _without(values, wrong) if wrong else values
    with suppress(*ARROW_ERRORS):
        return convert(values, kind), wrong
    alone = [row for row in doubtful() if row not in set(wrong)]
    alone = alone if len(alone) * 8 < len(values) else []
    waiting, rest = [(row, 1) for row in alone], _without(values, alone)
    wrong += unfit(values, kind, convert, waiting)
    wrong += unfit(rest, kind, convert, [(0, len(rest))])
    return convert(_without(values, wrong), kind), sorted(wrong)


def unfit(
    values: Any, kind: pa.DataType, convert: Callable[[Any, pa.DataType], Values], waiting: list[tuple[int, int]]
) -> Iterator[int]:
    """Yield the rows of parts (first row, number of rows) of `values` that `convert` cannot convert."""
    while waiting:
        first, count = waiting.pop()
        try:
            convert(values[first : first + count], kind)
        except ARROW_ERRORS:
            if count < 2:
                yield first
            else:
                half = count // 2
                waiting += [(first + half, count - half), (first, half)]


def _without(values: Any, rows: Sequence[int]) -> Any:
    """Return `values`, a sequence or an Arrow array, with None in some rows."""
    if not isinstance(values, pa.Array):
        bad = set(rows)
        return [None if row in bad else value for row, value in enumerate(values)] if bad else values
    mask = np.zeros(len(values), bool)
    mask[rows] = True
    return pc.if_else(pa.array(mask), None, values)


_DAY = r"\d{4}-(02-(0[1-9]|[12]\d)|(0[469]|11)-(0[1-9]|[12]\d|30)|(0[13578]|1[02])-(0[1-9]|[12]\d|3[01]))"
_CLOCK = r"[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
_ZONE = r"(Z|[+-][01]\d:?[0-5]\d)"


def shape_of(kind: pa.DataType) -> str | None:
    """Return a pattern of texts that usually are values of a type, as most others are not; None if there is none."""
    if pa.types.is_integer(kind):
        most = str(sum_bounds(kind)[1])
        return rf"^-?[0-{int(most[0]) - 1}]?\d{{1,{len(most) - 1}}}$"
    if pa.types.is_floating(kind):
        return r"^-?\d{1,17}(\.\d{1,17})?([eE][+-]?\d\d?)?$"
    if pa.types.is_decimal(kind):
        return rf"^[+-]?\d{{1,{kind.precision - kind.scale}}}(\.\d{{1,{max(kind.scale, 1)}}})?$"
    if pa.types.is_timestamp(kind):
        return f"^{_DAY}{_CLOCK}{'' if kind.tz is None else _ZONE}$"
    return f"^{_DAY}$" if pa.types.is_date(kind) else None


def of_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Like `fitting`, but raise one of `ARROW_ERRORS`, and without a search for the value."""
    wide = _wide(kind)
    if _has(pa.types.is_decimal, kind):
        try:
            column = pa.array(_short_decimals(values, kind, exact=False), wide)
        except pa.ArrowInvalid:  # perhaps wrongly: see `_with_fewer_places`
            column = pa.array(_short_decimals(values, kind, exact=True), wide)
    else:
        column = pa.array(values, wide)
    return _in_range(column if wide == kind else _cast(column, kind))


def _short_decimals(values: Sequence[Any], kind: pa.DataType, *, exact: bool) -> Sequence[Any]:
    """Return values of which Arrow can have the decimals; it wraps or crashes with some digits and exponents.

    Args:
        values: the values.
        kind: their type.
        exact: whether all decimals get the digits after the point that the type has; otherwise only odd ones.

    Raises:
        ValueError: a decimal has more digits than the type `kind`.
    """
    if pa.types.is_list(kind):
        return [one and _short_decimals(list(one), kind.value_type, exact=exact) for one in values]
    if pa.types.is_struct(kind):
        fields = [(field.name, field.type) for field in kind]
        return [
            one and {name: _short_decimals([one[name]], inner, exact=exact)[0] for name, inner in fields}
            for one in values
        ]
    if not pa.types.is_decimal(kind):
        return values
    digits, unit = kind.precision - kind.scale, Decimal(1).scaleb(-kind.scale)
    usual = Context(
        _MOST_PLAIN, Emax=max(0, digits - 1), Emin=-kind.scale, traps=[Clamped, Overflow, Rounded, Subnormal]
    )
    with suppress(ArithmeticError):
        if not exact:
            deque(map(usual.plus, [one for one in values if isinstance(one, Decimal)]), maxlen=0)
            return values
    context = Context(kind.precision, traps=[Inexact, InvalidOperation])
    try:
        return [one.quantize(unit, None, context) if isinstance(one, Decimal) else one for one in values]
    except InvalidOperation:
        large = any(one.is_finite() and one.adjusted() >= digits for one in values if isinstance(one, Decimal) and one)
        raise ValueError(_too_many(digits) if large else "not a finite number") from None
    except Inexact:
        raise ValueError(_too_many_places(kind)) from None


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return the type with 64 bits for each float in it."""
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _wide(kind.value_type), kind.value_field.nullable))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wide(field.type)) for field in kind])
    return kind


def decimals_of(texts: Values, kind: pa.DataType) -> Values:
    """Convert texts to decimals; an empty one is null. Arrow parses them fast, but wraps with some exponents.

    Raises:
        Misfit: a text is no number, or out of range.
    """
    texts = pc.utf8_trim_whitespace(texts)
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    plain = rf"^[+-]?0?[0-9]{{0,{kind.precision - kind.scale}}}(\.[0-9]{{0,{kind.scale}}})?$"
    if pc.all(pc.match_substring_regex(texts, plain)).as_py() is not False:
        with suppress(pa.ArrowException):
            return texts.cast(kind)
    given = texts.to_pylist()
    wrong = next((row for row, text in enumerate(given) if text is not None and not _NUMBER.fullmatch(text)), None)
    if wrong is not None:
        raise Misfit(f"expected a decimal number, got {shown(given[wrong])}", wrong)
    return fitting([None if text is None else Decimal(text) for text in given], kind)


def times_of(texts: Values, kind: pa.DataType) -> Values:
    """Convert texts in ISO 8601 to times, which need a zone, or dates; raise one of `ARROW_ERRORS` for another text."""
    return converted(texts.cast(pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) else pa.date32()), kind)


def python_values(column: Values) -> list[Any]:
    """Convert an Arrow column to Python objects; timestamps become datetimes in `datetime.UTC`."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_timestamp(column.type):
        return [None if value is None else value.replace(tzinfo=UTC) for value in values]
    return values


# -- columns -----------------------------------------------------------------------------------------------------------


def fits(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of the type `given` can be of the type `kind`: the same, or integers as wider numbers."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_null(given) or given == kind:
        return True
    one, other = python_type(given), python_type(kind)
    if one is not other:
        return (one, other) in _WIDENED
    if one is datetime:
        return given.tz is not None or kind.tz is None
    if one is list:
        return fits(given.value_type, kind.value_type)
    if one is dict:
        fields = {field.name: field.type for field in given}
        return fields.keys() == {field.name for field in kind} and all(fits(fields[one.name], one.type) for one in kind)
    return one is not type(None)


def converted(column: Values, kind: pa.DataType) -> Values:
    """Convert a column to the type `kind`; every value stays what it is.

    Raises:
        Misfit: the types do not fit (see `fits`), or a value is out of range.
    """
    if not fits(column.type, kind):
        if column.null_count == len(column):  # as any value of None
            none = pa.nulls(len(column), kind)
            return pa.chunked_array([none]) if isinstance(column, pa.ChunkedArray) else none
        raise Misfit(f"expected {kind}, got {column.type}")
    try:
        return _in_range(_cast(column, kind))
    except ARROW_ERRORS as error:
        cause = error
    row = _first_bad(column, kind)
    raise Misfit(f"expected values that fit {kind}, got {text_at(column, row)} ({cause})", row) from None


def misfits(values: Values | Sequence[Any], kind: pa.DataType) -> dict[int, str]:
    """Return the rows with values that do not fit the type `kind`, each with the reason."""
    if isinstance(values, pa.Array | pa.ChunkedArray) and fits(values.type, kind) and _is_good(values, kind):
        return {}
    found: dict[int, str] = {}
    for row in range(len(values)):
        one = values[row : row + 1]
        try:
            if isinstance(one, pa.Array | pa.ChunkedArray):
                converted(one, kind)
            else:
                column_of(one, kind)
        except Misfit as error:
            found[row] = str(error)
    return found


def misfit_behind(error: BaseException | None) -> Misfit | None:
    """Return the misfit of a known column that `error` is, or was raised for; None if there is none."""
    while error is not None and not (isinstance(error, Misfit) and error.column is not None):
        error = error.__cause__ or error.__context__
    return error


def restored(rows: Any, kind: pa.DataType | pa.Schema) -> Any:
    """Return stored rows, a column or a table, with the types that they were stored with; libraries may read others."""
    return rows.cast(kind)


def rows_out_of_range(column: Values) -> list[int]:
    """Return the rows with a time or date, perhaps in a list or struct, that Python does not have."""
    if not has_bounds(column.type) or _is_good(column, column.type):
        return []
    if (bounds := _bounds(column.type)) is None:
        return list(unfit(column, column.type, lambda part, kind: _in_range(_cast(part, kind)), [(0, len(column))]))
    numbers = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    rows: list[int] = pc.indices_nonzero(
        pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1]))
    ).to_pylist()
    return rows


def sum_bounds(kind: pa.DataType) -> tuple[Any, Any]:
    """Return the least and the greatest integer or decimal of a type."""
    if pa.types.is_decimal(kind):
        most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, EXACT)
        return most.copy_negate(), most
    limits = np.iinfo(kind.to_pandas_dtype())
    return int(limits.min), int(limits.max)


def sum_may_overflow(column: Values) -> bool:
    """Return whether a sum of some of the values may be out of the range of their type: Arrow and NumPy then wrap."""
    kind = column.type
    if pa.types.is_floating(kind):
        return False
    if pa.types.is_int64(kind) and isinstance(column, pa.Array) and not column.null_count:  # a fifth of the time
        return bool(np.abs(np.asarray(column).astype(np.float64)).sum() >= 1 << 62)
    total = pc.sum(pc.abs(column.cast(pa.float64(), safe=False))).as_py()
    return total is not None and total >= float(sum_bounds(kind)[1]) / 2  # as floats are not exact


def _cast(column: Values, kind: pa.DataType) -> Values:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    column = column.cast(_with_decimals(column.type, kind))
    short = False
    for leaf, wanted in _leaves(column, kind):
        _check_narrowed(leaf, wanted)
        short = short or _loses_places(leaf.type, wanted)
    return _with_fewer_places(column, kind) if short else column.cast(kind)


def _loses_places(given: pa.DataType, kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(given) and pa.types.is_decimal(kind) and kind.scale < given.scale)


def _with_fewer_places(column: Values, kind: pa.DataType) -> Values:
    """Convert decimals, perhaps in lists or structs, to a type with fewer digits after the point, if all are zeros.

    Arrow refuses some that are: it divides decimals wrongly if the quotient is close to 2**63, 2**64 or other powers.
    Then Python decides.
    """
    with suppress(ValueError):
        short = column.cast(kind)
        pairs = zip(_leaves(column, kind), _leaves(short, kind), strict=True)
        if not any(_loses_places(one.type, wanted) and _lost(one, other) for (one, wanted), (other, _) in pairs):
            return short
    found = of_values(column.to_pylist(), kind)
    return pa.chunked_array([found]) if isinstance(column, pa.ChunkedArray) else found


def _lost(column: Values, short: Values) -> Decimal:
    """Return the greatest difference of decimals to their `short` forms, without a division."""
    wide = pa.decimal256(_MOST_DIGITS - 1, column.type.scale)
    ends = pc.min_max(pc.subtract(_cast(column, wide), _cast(short, wide))).as_py()
    return max((abs(end) for end in ends.values() if end is not None), default=Decimal(0))


def nearest(column: Values, kind: pa.DataType) -> Values:
    """Convert decimals to a type with perhaps fewer digits after the point, rounded to the nearest.

    Raises:
        ValueError: one is half way between two, or out of range, or Arrow has rounded it wrongly (see `converted`).
    """
    if not _loses_places(column.type, kind):
        return converted(column, kind)
    short = pc.round(column, kind.scale, "half_to_even").cast(kind)
    if _lost(column, short) * 2 >= Decimal(1).scaleb(-kind.scale):
        raise ValueError(_too_many_places(kind))
    return short


def _with_decimals(given: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Return the type `given` with large decimals in place of integers that are to be decimals.

    Arrow goes by the types alone, and refuses to make smaller decimals of integers.
    """
    if pa.types.is_decimal(kind):
        return _WHOLE if pa.types.is_integer(given) else given
    if pa.types.is_list(kind) and not pa.types.is_null(given):
        return pa.list_(_with_decimals(given.value_type, kind.value_type))
    if pa.types.is_struct(kind) and not pa.types.is_null(given):
        return pa.struct([one.with_type(_with_decimals(one.type, kind.field(one.name).type)) for one in given])
    return given


def _leaves(column: Values, kind: pa.DataType) -> Iterator[tuple[pa.Array, pa.DataType]]:
    """Yield the arrays of plain values in a column, with the types that they are to have."""
    if isinstance(column, pa.ChunkedArray):
        for chunk in column.chunks:
            yield from _leaves(chunk, kind)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield from _leaves(column.flatten(), kind.value_type)
    elif pa.types.is_struct(column.type):
        parts = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        for field in kind:
            yield from _leaves(parts[field.name], field.type)
    else:
        yield column, kind


def _check_narrowed(leaf: pa.Array, kind: pa.DataType) -> None:
    """Raise `ValueError` for a decimal or float that would wrap or become infinite; Arrow does not notice all."""
    given = leaf.type
    if pa.types.is_decimal(given) and pa.types.is_decimal(kind):
        digits = kind.precision - kind.scale
        if digits < given.precision - given.scale:
            ends = pc.min_max(leaf).as_py()
            if any(end is not None and abs(end) >= 10**digits for end in ends.values()):
                raise ValueError(_too_many(digits))
    elif pa.types.is_floating(given) and pa.types.is_floating(kind) and kind.bit_width < given.bit_width:
        if pc.any(pc.and_(pc.is_finite(leaf), pc.is_inf(leaf.cast(kind)))).as_py():
            raise ValueError(f"a value is out of the range of {kind}")


def _too_many(digits: int) -> str:
    return f"more than {digits} digits before the decimal point"


def _too_many_places(kind: pa.DataType) -> str:
    return f"more than {kind.scale} digits after the decimal point"


def _in_range(column: Values) -> Values:
    """Return `column`; raise `ValueError` if it has a time or date that Python does not have."""
    for leaf, kind in _leaves(column, column.type) if has_bounds(column.type) else ():
        bounds = _bounds(kind)
        if bounds is None or leaf.null_count == len(leaf):
            continue
        ends = pc.min_max(leaf.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
        if ends["min"] < bounds[0] or ends["max"] > bounds[1]:
            raise ValueError(NO_TIME)
    return column


@cache
def _has(is_wanted: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    """Return whether a type, or one inside it, is wanted."""
    if pa.types.is_nested(kind):
        return any(_has(is_wanted, kind.field(i).type) for i in range(kind.num_fields))
    return bool(is_wanted(kind))


def _is_bounded(kind: pa.DataType) -> bool:
    return _bounds(kind) is not None


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether a column of a type may have a time or date that Python does not have."""
    return _has(_is_bounded, kind)


def _bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the least and greatest number that stands for a time in Python; None for other types."""
    if pa.types.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    if pa.types.is_date64(kind):
        return _FIRST_DAY * _DAY_MS, _LAST_DAY * _DAY_MS
    if not pa.types.is_temporal(kind) or not hasattr(kind, "unit"):
        return None
    unit = _PER_SECOND[kind.unit]
    if pa.types.is_timestamp(kind):
        return _FIRST_SECOND * unit, (_LAST_SECOND + 1) * unit - 1
    if pa.types.is_time(kind):
        return 0, _DAY_S * unit - 1
    return -_MOST_DAYS * _DAY_S * unit, _MOST_DAYS * _DAY_S * unit


def _first_bad(column: Values, kind: pa.DataType) -> int:
    """Return the row of the first value that does not fit, of a column of which one does not."""
    first, size = 0, len(column)
    while size > 1:
        half = size // 2
        if _is_good(column.slice(first, half), kind):
            first, size = first + half, size - half
        else:
            size = half
    return first


def _is_good(column: Values, kind: pa.DataType) -> bool:
    try:
        _in_range(_cast(column, kind))
    except ARROW_ERRORS:
        return False
    return True


def text_at(column: Values, row: int) -> str:
    """Return a value of a column as a short text, even if Python does not have it."""
    with suppress(*ARROW_ERRORS):
        return shown(column[row].as_py())
    with suppress(*ARROW_ERRORS):
        return str(column[row].cast(pa.string()))
    return " ".join(column.slice(row, 1).to_string().split())


def stacked(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Concatenate the `columns` of record batches; yield one table per distinct schema."""
    by_schema: dict[bytes, list[pa.RecordBatch]] = {}
    for batch in batches:
        chosen = batch.select(columns)
        by_schema.setdefault(chosen.schema.serialize().to_pybytes(), []).append(chosen)
    return (pa.Table.from_batches(group).unify_dictionaries() for group in by_schema.values())
