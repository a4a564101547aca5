"""Zipf-distributed words that depend only on the txid: the input of every side. Usable without txstorm."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

VOCABULARY = 10_000
EXPONENT = 1.1
POOL = 1 << 20
SEED = 20120117
STEP = 7919  # a prime, so that no two of the first million txids begin at the same place of the pool
PREFIX = "k"

Ranks = npt.NDArray[np.int64]


def zipf_ranks(txid: int, share: range, keys: int = VOCABULARY) -> Ranks:
    """Return the ranks, out of `keys` words, of the words at the positions `share` of transaction `txid`."""
    start = (txid * STEP * 131 + share.start) % POOL
    return np.take(pool(keys), np.arange(start, start + len(share)), mode="wrap").astype(np.int64)


def message_ranks(partition: int, start: int, stop: int) -> Ranks:
    """Return the ranks of the words that are the keys of offsets `start` to `stop` of a Kafka partition."""
    return np.take(pool(), np.arange(start, stop) + partition * STEP * 131, mode="wrap").astype(np.int64)


def spread_ranks(txid: int, share: range, keys: int) -> Ranks:
    """Return `share` of the keys that `txid` changes: all distinct, spread over all `keys`, a power of ten."""
    return (txid * 1_000_003 + np.arange(share.start, share.stop, dtype=np.int64) * STEP) % keys


def words(ranks: Ranks, keys: int = VOCABULARY) -> pa.Array:
    """Return the words of these ranks: of the vocabulary, or for more keys than it has, a prefix and the rank."""
    if keys <= VOCABULARY:
        return vocabulary().take(pa.array(ranks))
    return pc.binary_join_element_wise(PREFIX, pa.array(ranks).cast(pa.string()), "")


def ranks_of(found: pa.Array, keys: int = VOCABULARY) -> Ranks:
    """Return the ranks of words, the inverse of `words`; -1 for unknown words."""
    if keys <= VOCABULARY:
        return pc.fill_null(pc.index_in(found, vocabulary()), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    plain = pc.match_substring_regex(found, f"^{PREFIX}(0|[1-9][0-9]{{0,8}})$")
    digits = pc.if_else(plain, pc.utf8_slice_codeunits(found, len(PREFIX)), "-1")
    return digits.cast(pa.int64()).to_numpy(zero_copy_only=False)


@cache
def vocabulary() -> pa.Array:
    """Return the words, by rank: generated, all distinct, of two to eleven letters."""
    generator = random.Random(SEED)
    made: dict[str, None] = {}
    while len(made) < VOCABULARY:
        size = generator.randint(2, 5) if len(made) < 200 else generator.randint(4, 11)
        made["".join(generator.choices("etaoinshrdlucmfwypvbgk", k=size))] = None
    return pa.array(made, pa.string())


@cache
def pool(keys: int = VOCABULARY) -> npt.NDArray[np.int32]:
    """Return word ranks in a random order, drawn once and identical in every process."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -EXPONENT
    bounds = np.cumsum(weights / weights.sum())
    drawn = np.random.default_rng(SEED).random(POOL)
    return np.minimum(np.searchsorted(bounds, drawn), keys - 1).astype(np.int32)
