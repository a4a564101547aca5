"""Operator networks that read a topic and a file, by replicas and as a topology: every line once, with its replica."""

import pytest

import txstorm
from txstorm.dadstorm.configuration import parse
from txstorm.dadstorm.master.network_run import NetworkOptions
from txstorm.dadstorm.master.replica_topology import replica_topology
from txstorm.dadstorm.processes.fleet import FleetSettings
from txstorm.dadstorm.topology import build_topology
from txstorm.results.read import read_sink

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("way", ["replicas", "topology"])
def test_a_topic_and_a_file(kafka_broker, tmp_path, way):
    topic = kafka_broker.make_topic(partitions=3)
    for partition in range(3):
        kafka_broker.produce(topic, [f"{partition},{n}" for n in range(4)], partition)
    (tmp_path / "more.data").write_text("file,1\nfile,2\n")
    text = (
        f"LoggingLevel full\nA input_ops kafka://{kafka_broker.bootstrap}/{topic}, more.data rep_fact 2 routing random "
        "address tcp://h:1/a, tcp://h:2/a operator_spec DUP\nStart A"
    )
    configuration = parse(text, directory=tmp_path)
    options = NetworkOptions(max_batch_rows=5, fleet=FleetSettings(local=True))
    topology = replica_topology(configuration, options)[0] if way == "replicas" else build_topology(configuration)
    found = []
    for _ in range(2):
        txstorm.run(topology, engine="local", data_dir=tmp_path / "data", available_now=True).awaitTermination()
        rows = read_sink(tmp_path / "data", "A_emitted").to_pylist()
        found.append({tuple(row["fields"]): row["replica"] for row in rows})
        assert len(found[-1]) == len(rows)
        kafka_broker.produce(topic, ["late"], 1)
        topology = replica_topology(configuration, options)[0] if way == "replicas" else topology
    expected = {(str(partition), str(n)): partition % 2 for partition in range(3) for n in range(4)}
    expected |= {("file", "1"): 0, ("file", "2"): 1}
    assert found == [expected, {**expected, ("late",): 1}]
