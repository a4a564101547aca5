"""Sources of operator networks: data files divided among replicas, topics of Kafka, and tuples as columns.

May import: dadstorm.configuration, dadstorm.values, spouts.files.text_lines, spouts.kafka.
Start: files.py.
"""

from txstorm.dadstorm.source.blocks import Block, Rows
from txstorm.dadstorm.source.files import FileParts, FilesCoordinator, FilesSpout, Part, Room
from txstorm.dadstorm.source.topics import TopicSpout

__all__ = ["Block", "FileParts", "FilesCoordinator", "FilesSpout", "Part", "Room", "Rows", "TopicSpout"]
