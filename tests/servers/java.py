"""Paths of Java and of the servers' jars."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from servers.process import ServerError

ROOT = Path(__file__).resolve().parents[2]
KAFKA_JARS = ROOT / ".cache" / "kafka-jars"

# Everything a server logs from INFO on goes to its output, which is its log file.
LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


def java(program: str = "java") -> str:
    """A program of the Java that JAVA_HOME or the PATH names."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / program) if home else shutil.which(program)
    if not found:
        raise ServerError(f"{program} is not on PATH: install Java 17 or newer (scripts/test --install does)")
    return found


def spark_jars() -> Path:
    """The jars of pyspark; ZooKeeper 3.9 and log4j are among them."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerError("pyspark, whose jars hold ZooKeeper, is not installed: pip install -e '.[dev]'")
    return Path(spec.origin).parent / "jars"


def kafka_jars() -> Path:
    """The jars of Kafka `scripts/jars` fetched."""
    if not any(KAFKA_JARS.glob("kafka_2.13-*.jar")):
        raise ServerError(f"no Kafka jars in {KAFKA_JARS}: run scripts/jars")
    return KAFKA_JARS


def kafka_classpath() -> str:
    """Kafka, and the log4j of pyspark, as Kafka's own dependencies hold none that writes."""
    spark = spark_jars()
    writing = [jar for name in ("slf4j-api", "log4j-slf4j2-impl") for jar in sorted(spark.glob(f"{name}-*.jar"))]
    return os.pathsep.join([*map(str, writing), f"{kafka_jars()}/*"])


def zookeeper_classpath() -> str:
    """ZooKeeper and what it needs."""
    spark = spark_jars()
    return os.pathsep.join([*map(str, sorted(spark.glob("zookeeper-*.jar"))), f"{spark}/*"])


def java_command(classpath: str, heap: str, logging: Path, call: Sequence[str], *, quick: bool) -> list[str]:
    """A command that runs a Java class in a small heap and logs as `LOGGING`, written to the file `logging`.

    A `quick` one takes half of the processor time to start, and more for each record, if there are millions of them.
    """
    logging.write_text(LOGGING, encoding="utf-8")
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}"]
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    return [java(), *options, "-cp", classpath, *call]
