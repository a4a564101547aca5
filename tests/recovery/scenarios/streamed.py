"""A streaming query over the files of a directory feeds a topology: ``streamed PLACE TABLES``, to the end of the files."""

from pathlib import Path

from lakes import Lake

from txstorm.clients.spark import make_session


def main(place: str, tables: str) -> None:
    """Run the query in a session of its own."""
    error, _ = Lake(make_session("streamed"), Path(place)).query(tables=int(tables))
    assert error == "", error
