"""Maps in complete runs: guarantees, unavailable stores, and stores that contradict the ledger."""

import shutil
import signal
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa
from map_nets import TROUBLE, Plain, Source, Sums, topology, values
from recovery_cases import ended, eventually

from txstorm import FailedException, MapState, MemoryBackend, TransactionalTopologyBuilder, run
from txstorm.books.books import Books
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.errors import BlockedError, FencedError, StateError, TableCorrupt
from txstorm.ledger.open import open_ledger
from txstorm.results.read import read_state
from txstorm.storage.tables.intent import STAGED

ROWS = [[("a", 1), ("b", 1)], [("a", 2), ("c", 5)], [("b", 0), ("d", 1)], [("a", 3), ("b", 4)]]
CHANGED = {2: [("a", 3), ("d", 7)]}
AS_PLANNED = {"a": 6, "b": 4, "c": 5, "d": 1}
AS_CHANGED = {"a": 7, "b": 4, "d": 8}


@pytest.fixture(autouse=True)
def _no_trouble():
    yield
    TROUBLE.clear()


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("kind", ["opaque", "transactional", "non_transactional"])
@pytest.mark.parametrize("group", [1, 64])
def test_a_batch_that_fails_after_its_writes_counts_once(backend, tmp_path, opaque, kind, group):
    TROUBLE[2] = 2
    source = Source(ROWS, CHANGED, opaque=opaque)
    handle = ended(topology(source, MapState("sums", backend, kind, opaque), group=group), tmp_path / "data")
    assert handle.progress.replays >= 2
    assert values(backend) == (AS_CHANGED if opaque else AS_PLANNED)


@pytest.mark.parametrize(
    ("opaque", "kind", "expected"),
    [
        (False, "transactional", {"a": 3, "b": 1, "c": 5}),
        (False, "opaque", {"a": 3, "b": 1, "c": 5}),
        (False, "non_transactional", {"a": 5, "b": 1, "c": 10}),
        (True, "opaque", {"a": 4, "b": 1, "c": 6}),
        (True, "transactional", {"a": 3, "b": 1, "c": 5}),  # the first attempt's writes are kept: not exactly once
        (True, "non_transactional", {"a": 6, "b": 1, "c": 11}),
    ],
)
def test_values_after_a_txid_is_committed_twice(tmp_path, opaque, kind, expected):
    """A txid is committed twice if the data directory, but not a store without marks, is restored from a backup."""
    backend, data_dir = Plain(), tmp_path / "data"
    source = Source(ROWS, {2: [("a", 3), ("c", 6)]}, opaque=opaque)
    built = topology(source, MapState("sums", backend, kind, opaque))
    ended(built, data_dir, until_txid=1)
    shutil.copytree(data_dir, tmp_path / "copy")
    ended(built, data_dir, until_txid=2)
    shutil.rmtree(data_dir)
    shutil.copytree(tmp_path / "copy", data_dir)
    if not opaque:  # a transactional source replays exactly
        source.changed = {}
    ended(built, data_dir, until_txid=2)
    assert values(backend) == expected


def test_a_data_directory_older_than_its_marked_map_is_rejected(backend, tmp_path):
    built, data_dir = topology(Source(ROWS), MapState("sums", backend), group=1), tmp_path / "data"
    ended(built, data_dir, until_txid=1)
    shutil.copytree(data_dir, tmp_path / "copy")
    ended(built, data_dir)
    with pytest.raises(TableCorrupt, match=r"map 'sums': the ledger expects it at txid 1 .*found 4.*restore both"):
        run(built, engine="local", data_dir=tmp_path / "copy", available_now=True)
    assert values(backend) == AS_PLANNED


def test_maps_on_both_engines(make_engine, tmp_path):
    backend = MemoryBackend()
    ended(topology(Source(ROWS), MapState("sums", backend), parallelism=2), tmp_path / "data", make_engine())
    assert values(backend) == AS_PLANNED


def test_parallel_tasks_and_two_maps_continue_after_restarts(make_backend, tmp_path):
    one, two = make_backend(), make_backend()
    maps = MapState("one", one), MapState("two", two, "transactional")
    for until in (1, 2, 4):
        ended(topology(Source(ROWS), *maps, parallelism=3), tmp_path / "data", until_txid=until)
    assert values(one) == values(two) == AS_PLANNED
    with pytest.raises(StateError, match="'one' is a map in an external store; read it there"):
        read_state(tmp_path / "data", "one")
    assert one.mark().txid == two.mark().txid == 4
    ledger = open_ledger(tmp_path / "data", create=False, read_only=True)
    assert Books(ledger, tmp_path / "data/intents").tables() == {"maps/one": 4, "maps/two": 4}
    ledger.close()


def test_staged_rows_are_removed_with_their_intents(tmp_path):
    ended(topology(Source(ROWS * 3), MapState("sums", MemoryBackend()), group=1), tmp_path / "data")
    staged = list((tmp_path / "data/maps/sums" / STAGED).iterdir())
    assert len(staged) == 3  # the last three intents are kept


def test_a_group_needs_one_get_per_txid_and_one_put(tmp_path):
    backend = MemoryBackend()
    rows = [[(f"k{i}", 1) for i in range(1000)] for _ in range(4)]
    ended(topology(Source(rows), MapState("sums", backend)), tmp_path / "data")
    assert backend.calls["multi_get"] <= 4
    assert backend.calls["put_marked"] <= 1 + 4  # one to take over, then one per group
    assert backend.multi_get(['"k7"'])[0].value == 4


class LosesConnection(SqlAlchemyBackend):
    """A store that loses its database connection once during a put: rows are written but not committed."""

    def __init__(self, *args):
        super().__init__(*args)
        self.cut = None

    def _put(self, connection, rows):
        super()._put(connection, rows)
        if rows and self.cut is not None:
            cut, self.cut = self.cut, None
            cut(connection)


@pytest.mark.integration
def test_a_database_killed_during_a_put_blocks_commits_until_it_is_back(postgres, tmp_path):
    backend = LosesConnection(postgres.url, "cut_kill")
    backend.cut = lambda _: postgres.stop(signal.SIGKILL)
    built = topology(Source(ROWS), MapState("sums", backend), group=1)
    handle = run(built, engine="local", data_dir=tmp_path / "data", available_now=True)
    try:
        eventually(lambda: handle.progress.blocked)
        assert "map 'sums': cannot put txids 1-1: ConnectionError: table 'cut_kill'" in handle.progress.blocked
    finally:
        postgres.start()
    handle.awaitTermination()
    assert handle.progress.blocked is None
    assert values(backend) == AS_PLANNED
    backend.dispose()


@pytest.mark.integration
def test_a_connection_terminated_during_a_put_loses_and_duplicates_nothing(postgres, tmp_path):
    backend = LosesConnection(postgres.url, "cut_terminate")

    def terminate(connection):
        pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar()
        other = sa.create_engine(postgres.url)
        with other.begin() as second:
            second.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        other.dispose()

    backend.cut = terminate
    ended(topology(Source(ROWS), MapState("sums", backend), group=1), tmp_path / "data")
    assert values(backend) == AS_PLANNED
    backend.dispose()


@pytest.mark.integration
def test_a_database_unavailable_for_reads_fails_batches_until_it_is_back(postgres, tmp_path):
    backend = SqlAlchemyBackend(postgres.url, "away")
    built = topology(Source(ROWS), MapState("sums", backend), group=1)
    ended(built, tmp_path / "data", until_txid=1)
    gone = threading.Event()
    get = backend.multi_get

    def cut(keys):
        if not gone.is_set():
            gone.set()
            postgres.stop()
        return get(keys)

    backend.multi_get = cut
    handle = run(built, engine="local", data_dir=tmp_path / "data", available_now=True)
    try:
        eventually(lambda: handle.progress.last_failure)
        assert "map 'sums' (sums[0], txid 2): the store cannot be read" in handle.progress.last_failure
    finally:
        postgres.start()
    handle.awaitTermination()
    assert values(backend) == AS_PLANNED
    backend.dispose()


@pytest.mark.integration
def test_a_database_unavailable_at_the_start_is_reported_and_nothing_is_changed(postgres, tmp_path):
    backend = SqlAlchemyBackend(postgres.url, "not_there")
    built = topology(Source(ROWS), MapState("sums", backend))
    postgres.stop()
    try:
        with pytest.raises(BlockedError, match="map 'sums': cannot take it over: ConnectionError"):
            run(built, engine="local", data_dir=tmp_path / "data", available_now=True)
    finally:
        postgres.start()
    ended(built, tmp_path / "data")
    assert values(backend) == AS_PLANNED
    backend.dispose()


class LosesResponses(MemoryBackend):
    """A store that loses every second response to a put, either after the put took effect (`made`) or without it."""

    def __init__(self, *, made):
        super().__init__()
        self.made, self.number = made, 0

    def put_marked(self, rows, expected, mark):
        self.number += 1
        if self.number % 2 == 0:
            if self.made:
                super().put_marked(rows, expected, mark)
            raise ConnectionError("no answer")
        return super().put_marked(rows, expected, mark)


@pytest.mark.parametrize("made", [True, False])
def test_a_lost_response_is_resolved_by_the_mark_not_by_a_blind_retry(tmp_path, made):
    backend = LosesResponses(made=made)
    ended(topology(Source(ROWS), MapState("sums", backend), group=1), tmp_path / "data")
    assert values(backend) == AS_PLANNED


class Broken(MemoryBackend):
    def put_marked(self, rows, expected, mark):
        if rows:
            raise ValueError("value too long for type character varying(3)")
        return super().put_marked(rows, expected, mark)


def blocked(backend, data_dir):
    """Run on a broken `backend` until blocked, so that `data_dir` has a decided group whose rows are not published."""
    built = topology(Source(ROWS), MapState("sums", backend))
    handle = run(built, engine="local", data_dir=data_dir, available_now=True)
    eventually(lambda: handle.progress.blocked)
    reason = handle.progress.blocked
    handle.stop()
    return reason


def test_a_store_that_rejects_rows_blocks_and_the_next_run_continues(tmp_path):
    backend = Broken()
    assert "ValueError: value too long" in blocked(backend, tmp_path / "data")
    mended = MemoryBackend()
    mended._mark = backend.mark()
    ended(topology(Source(ROWS), MapState("sums", mended)), tmp_path / "data")
    assert values(mended) == AS_PLANNED


def test_a_removed_map_with_decided_rows_is_reported(tmp_path):
    blocked(Broken(), tmp_path / "data")
    renamed = topology(Source(ROWS), MapState("others", MemoryBackend()))
    with pytest.raises(StateError, match=r"map 'sums': txids 1-\d are decided .*no longer declares it"):
        run(renamed, engine="local", data_dir=tmp_path / "data", available_now=True)


def test_a_different_or_emptied_store_is_reported(make_backend, tmp_path):
    ended(topology(Source(ROWS), MapState("sums", make_backend())), tmp_path / "data")
    with pytest.raises(TableCorrupt, match=r"map 'sums': the ledger knows it at txid 4, but the store has no mark"):
        run(topology(Source(ROWS), MapState("sums", make_backend())), engine="local", data_dir=tmp_path / "data")


def test_a_map_of_another_data_directory_is_reported(backend, tmp_path):
    built = topology(Source(ROWS), MapState("sums", backend))
    ended(built, tmp_path / "data")
    with pytest.raises(StateError, match=r"its store belongs to topology 'own', incarnation .*a map has one owner"):
        run(built, engine="local", data_dir=tmp_path / "other", available_now=True)


def test_a_coordinator_with_an_older_epoch_is_fenced(backend, tmp_path):
    built = topology(Source(ROWS), MapState("sums", backend), group=1)
    ended(built, tmp_path / "data", until_txid=1)
    assert backend.put_marked({}, backend.mark(), replace(backend.mark(), epoch=99))
    fenced = "map 'sums': a coordinator with epoch 99 has taken over from this one with epoch 2"
    with pytest.raises(FencedError, match=fenced):
        run(built, engine="local", data_dir=tmp_path / "data", available_now=True)


def test_damaged_staged_rows_are_never_put(tmp_path):
    backend = Broken()
    blocked(backend, tmp_path / "data")
    (staged,) = (tmp_path / "data/maps/sums" / STAGED).iterdir()
    staged.write_bytes(staged.read_bytes().replace(b"PAR1", b"PAR2"))
    with pytest.raises(TableCorrupt, match=r"staged file .*cannot be published"):
        run(topology(Source(ROWS), MapState("sums", backend)), engine="local", data_dir=tmp_path / "data")


def test_a_map_can_be_added_and_dropped_but_not_added_again(backend, tmp_path):
    """A dropped map is rejected, under its old name or a new one, because it lacks the transactions since then."""
    rows, kept, data = ROWS + ROWS, MapState("sums", backend), tmp_path / "data"
    other = MapState("other", MemoryBackend())
    ended(topology(Source(rows), other), data, until_txid=2)
    ended(topology(Source(rows), other, kept), data, until_txid=4)
    before = values(backend)
    with pytest.raises(StateError, match=r"maps/sums is recorded .*--drop sums"):
        ended(topology(Source(rows), other), data, until_txid=6)
    ended(topology(Source(rows), other), data, until_txid=6, drop=["sums"])
    with pytest.raises(StateError, match="map 'sums': was dropped after txid 4"):
        ended(topology(Source(rows), other, kept), data, until_txid=8)
    with pytest.raises(StateError, match="map 'again': its content is at txid 4, and the ledger does not record it"):
        ended(topology(Source(rows), other, MapState("again", backend)), data, until_txid=8)
    assert values(backend) == before


class Effects(Sums):
    """A committer with an external effect: records its txid and the last txid decided before it finishes."""

    seen: list[tuple[int, int]] = []

    def __init__(self, data_dir):
        super().__init__()
        self.data_dir = data_dir

    def finish_batch(self):
        ledger = open_ledger(self.data_dir, create=False, read_only=True)
        decided = Books(ledger, self.data_dir / "intents").currtx() - 1
        ledger.close()
        Effects.seen.append((self.attempt.txid, decided))
        if self.attempt.txid == 3 and len(Effects.seen) < 4:
            raise FailedException("after its effect, before the decision")


def test_with_external_effects_each_txid_is_decided_before_the_next_one_finishes(tmp_path):
    Effects.seen.clear()
    builder = TransactionalTopologyBuilder("own", "source", Source(ROWS * 2))
    builder.set_committer_bolt("effects", Effects(tmp_path / "data"), external=True).global_grouping("source")
    builder.set_settings({"max_spout_pending": 8, "retry_backoff": 0})
    built = builder.build_topology()
    assert built.external
    ended(built, tmp_path / "data")
    assert Effects.seen == [(1, 0), (2, 1), (3, 2), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (8, 7)]


class Failing(Sums):
    def finish_batch(self):
        self.context.state("sums").get(object())


def test_an_invalid_key_ends_the_topology_with_an_error_that_locates_it(tmp_path):
    builder = TransactionalTopologyBuilder("own", "source", Source(ROWS))
    builder.set_committer_bolt("sums", Failing(MapState("sums", MemoryBackend()))).global_grouping("source")
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path / "data", available_now=True)
    with pytest.raises(StateError, match=r"map 'sums' \(sums\[0\], txid 1\): key .*cannot be part of a key"):
        handle.awaitTermination()
