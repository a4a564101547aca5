"""Entry points for real servers: `start_kafka`, `start_redis` and `start_zookeeper`, which return when they are ready."""

from servers.kafka import Kafka as Kafka
from servers.kafka import start_kafka as start_kafka
from servers.process import ServerError as ServerError
from servers.redis import Redis as Redis
from servers.redis import start_redis as start_redis
from servers.zookeeper import ZooKeeper as ZooKeeper
from servers.zookeeper import start_zookeeper as start_zookeeper
