"""docs/conformance.md lists every row and item, each with tests that name it."""

import conformance_rows
import pytest

WANTED = [
    *(f"T{row}" for row in range(1, 51)),
    *(f"W{row}" for row in range(1, 45)),
    *(f"U{row}" for row in (1, 2, 3, 4, 5, 8, 23, 24, 26, 29)),
    *(f"A{row}" for row in range(1, 24)),
    *(f"U{row}" for row in (6, 7, 9, 10, 11, 12, 13, 14, 25)),
    *(str(item) for item in range(1, 84)),
]


def test_every_row_and_item_is_listed_once():
    assert conformance_rows.rows(conformance_rows.PAGE.read_text(encoding="utf-8")) == WANTED


def test_every_row_and_item_is_named_by_a_test():
    found = conformance_rows.covered()
    assert [row for row in WANTED if row not in found] == []


def test_the_page_names_the_tests_there_are():
    """To update the page: ``python tests/docs/conformance_rows.py``."""
    page = conformance_rows.PAGE.read_text(encoding="utf-8")
    assert page == conformance_rows.filled(page)


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        ("test items 1 to 3 transcript", {"1", "2", "3"}),
        ("test item 43, 44, 45, 46 a failure", {"43", "44", "45", "46"}),
        ("test items 63 and 64 stored", {"63", "64"}),
        ("Rows T1, T12. Items 15–17.", {"T1", "T12", "15", "16", "17"}),
        ("W2–W4, W12.", {"W2", "W3", "W4", "W12"}),
        ("U1 to U3, U8.", {"U1", "U3", "U8"}),
        ("Rows A5, A6; A16–A18.", {"A5", "A6", "A16", "A17", "A18"}),
        ("test txid 5 of 8", set()),
    ],
)
def test_what_a_test_names(said, rows):
    assert conformance_rows.named(said) == rows
