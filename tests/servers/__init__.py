"""Real Kafka brokers, ZooKeeper and Redis servers on this machine, for tests, `scripts/kafka`, `zookeeper` and `redis`."""
