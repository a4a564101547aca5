"""Functions of the user in the driver: shared by copies in its process, absent in others."""

import pickle
import subprocess
import sys

import pytest

from txstorm.user_code import InDriver


def test_copies_in_the_same_process_share_the_object():
    seen = []
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(held := InDriver(seen.append)))))
    copy.value("called")
    assert seen == ["called"]
    assert copy is held


@pytest.mark.integration
def test_copies_in_another_process_or_of_an_object_that_is_not_used_any_more_are_empty():
    held = InDriver("password")
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).value)"
    shipped = pickle.dumps(held)
    assert b"password" not in shipped
    made = subprocess.run([sys.executable, "-c", code], input=shipped, capture_output=True, check=True, timeout=120)
    assert made.stdout.strip() == b"None"
    assert held.value == "password"
    shipped = pickle.dumps(InDriver(object()))
    assert pickle.loads(shipped).value is None
