"""Participants of the fault-injection test: a transactional producer, and a leading and a standby driver."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from programs import Program, loaded
from servers.family import end_session

log = logging.getLogger("trouble.writer")
FENCED = 3
EXCUSED = ["the brokers cannot be asked", "has no topic", "expected an answer"]
"""Error messages with which a driver may legitimately end, besides being killed or fenced."""
ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"word-{number}" for number in range(40)]


class Writer(threading.Thread):
    """A producer thread that writes transactions of up to 60 records to random partitions and aborts some of them.

    All values are distinct. After an error the outcome of a transaction is unknown, which does not matter: the next
    producer with the same transactional id either commits or aborts it.
    """

    pause = 0.05
    """Maximum seconds between two transactions."""
    aborts = 0.3
    """Share of the transactions that are aborted."""

    def __init__(self, brokers: str, topic: str, partitions: int, rng: random.Random) -> None:
        super().__init__(daemon=True, name="writer")
        self.partitions = partitions
        self.written = 0
        self.failure: BaseException | None = None
        self._settings = {
            "bootstrap.servers": brokers,
            "transactional.id": f"writer-{topic}",
            "linger.ms": 0,
            "message.timeout.ms": 5000,
            "transaction.timeout.ms": 10_000,
            "log_level": 0,
        }
        self._topic = topic
        self._rng = rng
        self._quiet = threading.Lock()
        self._ended = threading.Event()

    def run(self) -> None:
        """Write transactions until `end` is called."""
        producer = None
        try:
            while not self._ended.wait(self._rng.uniform(0, self.pause)):
                with self._quiet:
                    producer = self._transaction(producer)
        except BaseException as error:  # noqa: BLE001 - `end` reports it
            self.failure = error

    def end(self) -> None:
        """Stop writing and complete the last transaction; fail if the thread failed."""
        self._ended.set()
        self.join(60)
        assert self.failure is None, self.failure
        assert not self.is_alive()
        self._settle()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Pause the producer until the context exits, with no open transaction."""
        with self._quiet:
            self._settle()
            yield

    def _settle(self) -> None:
        """Complete the last transaction: a new producer with its id waits until all readers can see the outcome."""
        for _ in range(10):
            with suppress(KafkaException):
                self._opened()
                return
        msg = "the writer's transactions cannot be brought to an end"
        raise AssertionError(msg)

    def _transaction(self, producer: Producer | None) -> Producer | None:
        try:
            producer = producer or self._opened()
            self._write(producer)
        except (KafkaException, BufferError):
            # This producer is fenced or cannot learn the outcome of the transaction; a new producer resolves it.
            return None
        return producer

    def _opened(self) -> Producer:
        producer = Producer(self._settings, logger=log)
        producer.init_transactions(5)
        return producer

    def _write(self, producer: Producer) -> None:
        aborted = self._rng.random() < self.aborts
        producer.begin_transaction()
        for word, partition in self._batch():
            self.written += 1
            producer.produce(self._topic, f"{'aborted' if aborted else word} {self.written}", partition=partition)
        if aborted:
            producer.flush(5)
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)

    def _batch(self) -> Iterator[tuple[str, int]]:
        """Yield word and partition of each record of a transaction."""
        for _ in range(self._rng.randint(1, 60)):
            yield self._rng.choice(WORDS), self._rng.randrange(self.partitions)


def start_driver(place: Path, target: str, *options: str, engine: str = "local", **environment: str) -> Program:
    """Start ``txstorm run`` of a topology in this folder, with a new log and the data directory in `place`."""
    path = os.pathsep.join(map(str, [ROOT, Path(__file__).parent, ROOT / "tests", ROOT / "tests" / "helpers"]))
    command = ["run", target, "--engine", engine, "--json", "--data-dir", str(place / "data"), *options]
    log = place / f"driver-{time.monotonic_ns()}.log"
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    # In a separate session, so that the processes it starts can be identified.
    return loaded().start("-m", "txstorm", *command, env=environment, output=log, merged=True, session=True)


def logs(place: Path) -> str:
    """Return the tails of the logs of the last three drivers."""
    last = sorted(place.glob("driver-*.log"), key=lambda path: path.stat().st_mtime)[-3:]
    return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in last)


def said(driver: Program) -> str:
    return "\n".join(driver.printed.splitlines()[-12:])


class Drivers:
    """Supervisor that keeps two drivers running, each the other's standby; `ended` has exit codes and tails of logs.

    `target` and `options` are those of ``txstorm run``; the engine ``spark`` starts further processes, which are killed
    with their driver.
    """

    def __init__(
        self,
        place: Path,
        target: str,
        options: list[str],
        *,
        engine: str = "local",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = place / "data"
        self.ended: list[tuple[int, str]] = []
        self._place = place
        self._environment = dict(environment or {})
        self._target, self._options, self._engine = target, options, engine
        self._running: list[Program] = []
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="drivers")

    def start(self) -> None:
        self._running = [self._new(), self._new()]
        self._keeper.start()

    def _keep(self) -> None:
        while not self._over.wait(0.1):
            with self._lock:
                for number, driver in enumerate(self._running):
                    if driver.poll() is not None:
                        self.ended.append(self._end(driver))
                        self._running[number] = self._new()

    def _new(self, *options: str, fault: str = "") -> Program:
        options = (*self._options, *(options or ("--standby",)))
        environment = {"TXSTORM_FAULT": fault, **self._environment}
        return start_driver(self._place, self._target, *options, engine=self._engine, **environment)

    @staticmethod
    def _end(driver: Program) -> tuple[int, str]:
        """Kill a driver, if it runs, and what it has started; return its exit code and the end of its output."""
        driver.kill()
        code = driver.wait()
        end_session(driver.pid)
        return code, said(driver)

    def unexpected(self) -> list[tuple[int, str]]:
        """Return exit code and output of the drivers that ended for another reason than a kill or a known error."""
        expected = (-signal.SIGKILL, FENCED)
        return [one for one in self.ended if one[0] not in expected and not any(why in one[1] for why in EXCUSED)]

    def leader(self, lease: Lease) -> Program | None:
        """Return the running driver that holds the lease; None if there is none, or ZooKeeper is unreachable."""
        holder = lease.holder()
        with self._lock:
            return next((one for one in self._running if holder is not None and one.pid == holder[0]), None)

    def replace_all(self, fault: str) -> Program:
        """Kill both drivers with SIGKILL and start two new ones; return the first, which dies at the point `fault`."""
        with self._lock:
            self._kill()
            self._running = [self._new(fault=fault), self._new()]
            return self._running[0]

    def finish(self, seconds: float) -> str:
        """Kill both drivers with SIGKILL, run one to the end of the source, and return its output; fail if it fails."""
        self._over.set()
        self._keeper.join()
        self._kill()
        last = self._new("--available-now", "--standby")  # the session of a killed driver may not have expired yet
        try:
            last.wait(seconds)
        finally:
            code, shown = self._end(last)
        assert code == 0, shown
        return shown

    def close(self) -> None:
        self._over.set()
        self._keeper.join()
        self._kill(note=False)

    def _kill(self, *, note: bool = True) -> None:
        ended = [self._end(driver) for driver in self._running]
        self.ended += ended if note else []
        self._running = []

    def committed(self) -> int:
        """Return the last txid in the sink table, which nearly every transaction changes; 0 before the first commit."""
        try:
            files = DeltaTable(self.data_dir / "sinks" / "rows").get_add_actions(flatten=True)
        except TableNotFoundError:
            return 0
        return max(pa.table(files).to_pydict().get("max._txid", []), default=0)


class Lease:
    """The lease of a ZooKeeper ledger, observed and expired by an independent client."""

    def __init__(self, hosts: str, root: str) -> None:
        self._hosts = hosts
        self._path = f"{root}/%lease"

    def holder(self) -> tuple[int, int] | None:
        """Return process id and session id of the lease holder; None if there is none or ZooKeeper is unreachable."""
        client = KazooClient(self._hosts)
        try:
            client.start(timeout=5)
            data, stat = client.get(self._path)
            return int(json.loads(data)["pid"]), stat.ephemeralOwner
        except (KazooException, client.handler.timeout_exception):
            return None
        finally:
            client.stop()
            client.close()

    def expire(self, session: int) -> None:
        """Expire the session with id `session`: a second client takes it over by its password and closes it."""
        client = KazooClient(self._hosts, client_id=(session, password_of(session)))
        try:
            client.start(timeout=5)
        except client.handler.timeout_exception:  # the session has already expired, or ZooKeeper is unreachable
            pass
        finally:
            client.stop()
            client.close()


def password_of(session: int) -> bytes:
    """Return the password of a ZooKeeper session: the first bytes of Java's `Random`, seeded by the session id."""
    mask, factor = (1 << 48) - 1, 0x5DEECE66D
    state, password = ((session ^ 0xB3415C00) ^ factor) & mask, b""
    for _ in range(4):
        state = (state * factor + 0xB) & mask
        password += (state >> 16).to_bytes(4, "little")
    return password


def wait_until(condition, what: str, seconds: float) -> None:
    """Wait until `condition` returns true; fail after `seconds` with a message that contains `what`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.05)
