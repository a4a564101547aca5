"""Sketches as monoids: approximate counts, frequencies and quantiles in bounded space; extra ``sketches``.

They are those of Apache DataSketches, in the compact form that Spark's functions ``hll_…``, ``theta_…`` and ``kll_…``
read. A state is the bytes of a sketch, so that equal states can be compared by their bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from struct import pack_into, unpack_from
from typing import Any, ClassVar

import numpy as np

from txstorm.errors import InputError, MissingDependency
from txstorm.monoids.ready_made import Monoid

_MODE, _FLAGS, _OUT_OF_ORDER = 7, 5, 0x10
_LIST, _SET, _DENSE = 0, 1, 2
_COUPONS = {_LIST: 8, _SET: 12}
"""Mode of a sparse HLL sketch → where its coupons begin (`HllUtil` of Apache DataSketches)."""
_HIP = slice(8, 16)
_FEW = 40
"""Number of coupons up to which Python sorts them faster than numpy."""


def _library() -> Any:
    try:
        import datasketches
    except ImportError:
        raise MissingDependency("datasketches", "sketches") from None
    return datasketches


class Sketch(Monoid):
    """Base class of sketches; a state is the bytes of one.

    Attributes:
        form: the form of its name, with the attributes that all states that are merged must have in common.
    """

    column = bytes
    form: ClassVar[str]

    @property
    def name(self) -> str:
        """The name with its precision."""
        return self.form.format(self)

    def empty(self) -> bytes:
        """Return the sketch of nothing."""
        return self._bytes(self._new())

    def of(self, *values: Any) -> bytes:
        """Return the sketch of one value."""
        return self.fold([values])

    def fold(self, rows: Iterable[tuple[Any, ...]]) -> bytes:
        """Return the sketch of many values; None counts nothing."""
        sketch = self._new()
        for row in rows:
            if row[0] is not None:
                sketch.update(*row)
        return self._bytes(sketch)

    def fold_values(self, values: Iterable[Any]) -> bytes:
        """Return the sketch of many values, as `fold` does for rows of one field."""
        sketch = self._new()
        deque(map(sketch.update, (one for one in values if one is not None)), maxlen=0)
        return self._bytes(sketch)

    def merge(self, a: bytes, b: bytes) -> bytes:
        """Return the sketch of what both are of."""
        kind = type(self._new())
        left = kind.deserialize(a)
        left.merge(kind.deserialize(b))
        return self._bytes(left)

    def _new(self) -> Any:
        raise NotImplementedError

    def _bytes(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize())


class HyperLogLog(Sketch):
    """The number of distinct values, with HyperLogLog: within 1.6 % in two of three cases at ``lg_k=12``, in 4 KiB.

    Its laws hold bit by bit. Spark's ``hll_sketch_estimate`` and ``hll_union_agg`` read its states.

    Args:
        lg_k: binary logarithm of the number of registers, 4 to 21.
    """

    form = "HyperLogLog({0.lg_k})"

    def __init__(self, lg_k: int = 12) -> None:
        self.lg_k = _within("HyperLogLog: lg_k", lg_k, 4, 21)

    def merge(self, a: bytes, b: bytes) -> bytes:
        """Return the sketch of the values of both."""
        library = _library()
        union = library.hll_union(self.lg_k)
        for one in (a, b):
            union.update(library.hll_sketch.deserialize(one))
        return self._bytes(union.get_result(library.tgt_hll_type.HLL_8))

    @staticmethod
    def value(state: bytes) -> float:
        """Return the estimated number of distinct values."""
        return float(_library().hll_sketch.deserialize(state).get_estimate())

    def _new(self) -> Any:
        library = _library()
        return library.hll_sketch(self.lg_k, library.tgt_hll_type.HLL_8)

    def _bytes(self, sketch: Any) -> bytes:
        """Return the sketch as bytes that do not depend on the order in which its values came.

        Sparse sketches list their coupons as they came: here they are sorted. Dense ones carry an estimate that is
        valid for one order only (HIP): here it is left out, and readers estimate from the registers.
        """
        data = bytearray(sketch.serialize_compact())
        mode = data[_MODE] & 3
        if mode == _DENSE:
            data[_FLAGS] |= _OUT_OF_ORDER
            data[_HIP] = bytes(8)
        else:
            begin = _COUPONS[mode]
            count = (len(data) - begin) // 4
            if count > _FEW:
                data[begin:] = np.sort(np.frombuffer(bytes(data[begin:]), "<u4")).tobytes()
            elif count > 1:
                form = f"<{count}I"
                pack_into(form, data, begin, *sorted(unpack_from(form, data, begin)))
        return bytes(data)


class Theta(Sketch):
    """The number of distinct values, with a theta sketch, which can be intersected: within 1.6 % at ``lg_k=12``.

    Its laws hold bit by bit. Spark's ``theta_…`` functions read its states.

    Args:
        lg_k: binary logarithm of the number of hashes that are kept, 5 to 26.
    """

    form = "Theta({0.lg_k})"

    def __init__(self, lg_k: int = 12) -> None:
        self.lg_k = _within("Theta: lg_k", lg_k, 5, 26)

    def merge(self, a: bytes, b: bytes) -> bytes:
        """Return the sketch of the values of both."""
        library = _library()
        union = library.theta_union(self.lg_k)
        for one in (a, b):
            union.update(library.compact_theta_sketch.deserialize(one))
        return bytes(union.get_result(True).serialize())

    @staticmethod
    def value(state: bytes) -> float:
        """Return the estimated number of distinct values."""
        return float(_library().compact_theta_sketch.deserialize(state).get_estimate())

    def _new(self) -> Any:
        return _library().update_theta_sketch(self.lg_k)

    def _bytes(self, sketch: Any) -> bytes:
        sketch.trim()  # to the nominal number of hashes, as merges do
        return bytes(sketch.compact(True).serialize())


class CountMin(Sketch):
    """Numbers of occurrences of values, never too low, too high by at most `error` of all with the given confidence.

    Feed it with a value, or with a value and how often it occurred. Its laws hold.

    Args:
        error: the largest error, as a share of the number of all values.
        confidence: the probability that an error is not larger.
    """

    form = "CountMin({0.error}, {0.confidence})"

    def __init__(self, error: float = 0.001, confidence: float = 0.99) -> None:
        if not (isinstance(error, float) and 0 < error < 1 and isinstance(confidence, float) and 0 < confidence < 1):
            msg = f"CountMin: expected error and confidence between 0 and 1, got {error!r} and {confidence!r}"
            raise InputError(msg)
        self.error, self.confidence = error, confidence

    @staticmethod
    def value(state: bytes, item: Any) -> float:
        """Return the estimated number of occurrences of a value."""
        return float(_library().count_min_sketch.deserialize(state).get_estimate(item))

    def _new(self) -> Any:
        kind = _library().count_min_sketch
        return kind(kind.suggest_num_hashes(self.confidence), kind.suggest_num_buckets(self.error))


class FrequentItems(Sketch):
    """The most frequent texts, with bounds of their numbers of occurrences.

    Feed it with a text, or with a text and how often it occurred. While there are not more texts than fit, it is exact;
    then merges in different orders differ within its error bound.

    Args:
        lg_k: binary logarithm of the greatest size of its table, 3 to 31.
    """

    form = "FrequentItems({0.lg_k})"
    exact = False

    def __init__(self, lg_k: int = 10) -> None:
        self.lg_k = _within("FrequentItems: lg_k", lg_k, 3, 31)

    def equal(self, a: bytes, b: bytes) -> bool:
        """Return whether both have counted as many texts."""
        left, right = map(_library().frequent_strings_sketch.deserialize, (a, b))
        return bool(left.total_weight == right.total_weight)

    @staticmethod
    def value(state: bytes) -> list[tuple[str, int, int, int]]:
        """Return (text, estimate, lower, upper bound) of the texts that are surely frequent, most frequent first."""
        library = _library()
        found = library.frequent_strings_sketch.deserialize(state)
        kind = library.frequent_items_error_type.NO_FALSE_POSITIVES
        return [(str(text), *map(int, bounds)) for text, *bounds in found.get_frequent_items(kind)]  # type: ignore[misc]

    def _new(self) -> Any:
        return _library().frequent_strings_sketch(self.lg_k)


class Quantiles(Sketch):
    """Quantiles of numbers, with a KLL sketch: the rank of an answer is off by 1.3 % at most at ``k=200``.

    Merges in different orders differ within that bound. Spark's ``kll_…_double`` functions read its states.

    Args:
        k: its accuracy and size, 8 to 65535.
    """

    exact = False
    form = "Quantiles({0.k})"

    def __init__(self, k: int = 200) -> None:
        self.k = _within("Quantiles: k", k, 8, 65_535)

    def equal(self, a: bytes, b: bytes) -> bool:
        """Return whether both are of as many numbers with the same bounds."""
        left, right = map(_library().kll_doubles_sketch.deserialize, (a, b))
        if left.n != right.n or left.is_empty():
            return bool(left.n == right.n)
        return (left.get_min_value(), left.get_max_value()) == (right.get_min_value(), right.get_max_value())

    @staticmethod
    def value(state: bytes, rank: float) -> float | None:
        """Return the number at a rank from 0 to 1; None of nothing."""
        found = _library().kll_doubles_sketch.deserialize(state)
        return None if found.is_empty() else float(found.get_quantile(rank))

    def _new(self) -> Any:
        return _library().kll_doubles_sketch(self.k)


def _within(what: str, given: int, least: int, most: int) -> int:
    if type(given) is not int or not least <= given <= most:
        raise InputError(f"{what}: expected an int of {least} to {most}, got {given!r}")
    return given
