"""Real Kafka brokers and ZooKeeper servers on this machine, for tests and for `scripts/kafka`, `scripts/zookeeper`."""
