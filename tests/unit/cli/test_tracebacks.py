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


def test_only_frames_of_the_users_files_are_kept_and_their_innermost_is_the_place():
    text = "\n".join([HEAD, *INTERNAL, *MINE, *INTERNAL, *MESSAGE])
    assert without_internals(text).splitlines() == [HEAD, *MINE, *MESSAGE]
    assert is_internal(target.__file__)
    assert is_internal("<frozen importlib._bootstrap>")
    assert not is_internal(__file__)
    with pytest.raises(InputError) as caught:
        target.load("no module:")
    assert place(caught.value).endswith(
        "in test_only_frames_of_the_users_files_are_kept_and_their_innermost_is_the_place"
    )
