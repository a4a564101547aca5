"""In-memory fake of Kafka brokers; supports only the requests that a spout coordinator makes."""

from concurrent.futures import Future

from txstorm.clients.kafka.cluster import EARLIEST, LATEST, Topic, Unavailable
from txstorm.spouts.kafka.decode import decoder
from txstorm.spouts.kafka.options import FIELDS, KafkaSource, listed


class Brokers:
    """Fake Kafka cluster: topics with the offset bounds of their partitions.

    Attributes:
        bounds: topic → partition → [first offset, end offset (exclusive)].
        ids: topic name → topic id.
        down: ids of nodes that fail every request.
        silent: ids of nodes that never answer.
        requests: the requests received, in order.
        unreachable: if set, requests for topics fail because no broker answers.
    """

    def __init__(self, **bounds: dict[int, list[int]]) -> None:
        self.bounds = bounds
        self.ids = {name: f"id-{name}" for name in bounds}
        self.down: set[int] = set()
        self.silent: set[int] = set()
        self.requests: list[str] = []
        self.unreachable = False

    def names(self, seconds: float) -> list[str]:
        self.requests.append("names")
        return sorted(self.bounds)

    def topics(self, names, seconds: float) -> dict[str, Topic]:
        self.requests.append("topics")
        if self.unreachable:
            raise Unavailable("nobody is there")
        there = [name for name in names if name in self.bounds]
        return {name: Topic(self.ids[name], {number: number for number in self.bounds[name]}) for name in there}

    def ask(self, wanted, seconds: float):
        self.requests.append("offsets")
        return {(topic, number): self._answer(topic, number, spec) for (topic, number), spec in wanted.items()}

    def _answer(self, topic: str, number: int, spec: int) -> Future:
        answer: Future = Future()
        if number in self.down or topic not in self.bounds or number not in self.bounds[topic]:
            answer.set_exception(RuntimeError("down"))
        elif number not in self.silent:
            begin, end = self.bounds[topic][number]
            # For simplicity, timestamps equal offsets.
            answer.set_result({LATEST: end, EARLIEST: begin}.get(spec, spec if spec < end else None))
        return answer

    def serve(self) -> str:
        return ""


def source(topics="t", *, opaque=False, **options) -> KafkaSource:
    chosen = {
        "settings": {"bootstrap.servers": "fake:9092"},
        "start": "earliest",
        "rows": 100,
        "size": 1 << 30,
        "fields": FIELDS,
        "key": decoder("bytes", "key"),
        "value": decoder("bytes", "value"),
        "isolation": "read_committed",
        "group": None,
        "discover": 10.0,
        "patience": 1.0,
    }
    return KafkaSource(opaque=opaque, topics=listed(topics), **{**chosen, **options})
