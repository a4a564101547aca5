import json

import pytest

from txstorm.cli.output import Interrupted, error_document, report
from txstorm.errors import FencedError, HeldError, MissingDependency, TopologyError, TopologyFailed

CODES = {
    2: [TopologyError("t", ["a"]), MissingDependency("pyspark", "spark")],
    3: [HeldError("held"), FencedError("fenced")],
    1: [TopologyFailed("failed"), ValueError("ours"), OSError(28, "disk full")],
    130: [Interrupted(), KeyboardInterrupt()],
}


@pytest.mark.parametrize(("code", "error"), [(code, error) for code, errors in CODES.items() for error in errors])
def test_exit_codes(code, error, capsys):
    assert report(error, as_json=True, debug=False) == code
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    found = json.loads(line)["error"]
    assert found["exit_code"] == code
    assert str(error) in captured.err
    assert (found["type"] == "Interrupted") == (code == 130)


def test_faults_and_run_facts_are_in_the_error_object_and_messages_printed_verbatim(capsys):
    document = error_document(TopologyError("t", ["a", "b"]), {"txids": 3})
    assert document["error"]["faults"] == ["a", "b"]
    assert document["error"]["run"] == {"txids": 3}
    assert list(document) == ["error"]
    report(TopologyFailed("[red]not markup[/red] é\nsecond line " + "x" * 300), as_json=True, debug=False)
    captured = capsys.readouterr()
    assert captured.err == "error: [red]not markup[/red] é\nsecond line " + "x" * 300 + "\n"
    assert "é" in captured.out
