import pytest

from txstorm.cli import target
from txstorm.cli.tracebacks import is_internal, place, without_internals
from txstorm.errors import InputError

HEAD = "Traceback (most recent call last):"
INTERNAL = [
    f'  File "{target.__file__}", line 3, in run_component',
    "    run.bolt.execute(tuple)",
    "    ^^^^^^^^^^^^^^^^^^^^^^^",
]
MINE = ['  File "/home/me/job.py", line 7, in execute', '    raise ValueError("x")', "    ^^^^^"]
MESSAGE = ["ValueError: two lines", "  File of mine"]


def test_only_the_users_frames_are_kept():
    text = "\n".join([HEAD, *INTERNAL, *MINE, *INTERNAL, *MESSAGE])
    assert without_internals(text).splitlines() == [HEAD, *MINE, *MESSAGE]


def test_internal_files_are_recognized():
    assert is_internal(target.__file__)
    assert is_internal("<frozen importlib._bootstrap>")
    assert not is_internal(__file__)


def test_the_place_is_the_innermost_frame_of_the_user():
    with pytest.raises(InputError) as caught:
        target.load("no module:")
    assert place(caught.value).endswith("in test_the_place_is_the_innermost_frame_of_the_user")
