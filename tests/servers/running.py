"""Entry points for real servers: `start_kafka` and `start_zookeeper`, which return when all servers are ready."""

from servers.kafka import Kafka as Kafka
from servers.kafka import start_kafka as start_kafka
from servers.process import ServerError as ServerError
from servers.zookeeper import ZooKeeper as ZooKeeper
from servers.zookeeper import start_zookeeper as start_zookeeper
