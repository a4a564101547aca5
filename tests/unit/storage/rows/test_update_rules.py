"""Update rules of transactional and opaque states, checked with the values from Storm's own tests and documentation."""

import pytest

from txstorm.errors import StateError
from txstorm.storage.rows.update_rules import Row, base, is_applied, opaque, transactional


def adding(n):
    return lambda old: (old or 0) + n


@pytest.mark.parametrize(("txid", "expected"), [(None, "v1"), (100, "v1"), (9, "v1"), (8, "v0")])
def test_opaque_value_reads_before_a_txid(txid, expected):
    assert base(Row("v1", 8, "v0"), txid) == expected


@pytest.mark.parametrize(
    "rule", [base, is_applied, lambda *row: opaque(*row, adding(1)), lambda *row: transactional(*row, adding(1))]
)
def test_a_row_ahead_of_the_txid_is_an_error_that_names_both(rule):
    with pytest.raises(StateError, match=r"state is ahead.*txid 7 or earlier.*txid 8"):
        rule(Row(1, 8, 0), 7)


def test_update_examples_of_the_documentation():
    """Opaque (T34) and transactional (T9) updates; a replay skips states that already are at its txid (T10)."""
    row = Row("v1", 8, "v0")
    assert opaque(row, 8, lambda _: "v2") == Row("v2", 8, "v0")
    assert opaque(row, 9, lambda _: "v2") == Row("v2", 9, "v1")
    assert opaque(Row(4, 2, 1), 3, adding(2)) == Row(6, 3, 4)
    assert opaque(Row(4, 2, 1), 2, adding(2)) == Row(3, 2, 1)
    assert opaque(None, 1, adding(5)) == Row(5, 1, None)
    rows = {"man": Row(3, 1, None), "dog": Row(4, 3, None), "apple": Row(10, 2, None)}
    for word, n in {"man": 2, "dog": 1}.items():
        rows[word] = transactional(rows[word], 3, adding(n))
    found = {word: (row.value, row.txid) for word, row in rows.items()}
    assert found == {"man": (5, 3), "dog": (4, 3), "apple": (10, 2)}
    first, second = Row(7, 4, None), Row(7, 3, None)
    assert transactional(first, 4, adding(1)) is first
    assert transactional(second, 4, adding(1)) == Row(8, 4, None)
