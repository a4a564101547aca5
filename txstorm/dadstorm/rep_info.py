"""Knowledge of a replica: its operator, its place in the network, and the addresses around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from txstorm.dadstorm.configuration import Configuration, Operator

MASTER_PORT, SERVICE_PORT = 10000, 10001
MASTER_URL = f"tcp://localhost:{MASTER_PORT}/pms"


@dataclass(frozen=True)
class RepInfo:
    """Everything that a replica has to know.

    Attributes:
        operator_id: the operator that it is a replica of.
        replica: its index.
        my_url: its address.
        port: the port of its address; None: the address has none.
        operator_spec: the type of its operator.
        operator_param: the parameters of its operator.
        routing: how tuples are routed to it and its siblings.
        routing_param: the field of ``hashing``; None otherwise.
        next_routing: how results are routed, per operator that reads this one.
        next_routing_param: the field of ``hashing``, or None, likewise.
        send_info_urls: the replicas that receive its results.
        receive_info_urls: the replicas whose results it receives.
        siblings_urls: the other replicas of its operator.
        input: the operators, files and topics that its operator reads.
        pms_url: the puppet master.
        semantics: the semantics of the network.
        logging_lvl: ``full`` or ``light``.
        directory: where libraries and the files of its code are looked for.
    """

    operator_id: str
    replica: int
    my_url: str
    port: int | None
    operator_spec: str
    operator_param: tuple[str, ...]
    routing: str
    routing_param: int | None
    next_routing: tuple[str, ...]
    next_routing_param: tuple[int | None, ...]
    send_info_urls: tuple[str, ...]
    receive_info_urls: tuple[str, ...]
    siblings_urls: tuple[str, ...]
    input: tuple[str, ...]
    pms_url: str
    semantics: str
    logging_lvl: str
    directory: str

    def to_json(self) -> dict[str, Any]:
        """Return the information as JSON."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RepInfo:
        """Return the information that `to_json` has made `document` of."""
        told: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in document.items()}
        return cls(**told)


def plan(configuration: Configuration, pms_url: str = MASTER_URL) -> dict[str, list[RepInfo]]:
    """Return ``{"replicas": …}``: the knowledge of each, by operator in the order of the file, then by index."""
    return {
        "replicas": [
            _told(configuration, operator, replica, pms_url)
            for operator in configuration.operators
            for replica in range(operator.replicas)
        ]
    }


def _told(configuration: Configuration, operator: Operator, replica: int, pms_url: str) -> RepInfo:
    readers = [configuration.operator(one) for one in configuration.consumers(operator.id)]
    read = [configuration.operator(one.text) for one in operator.sources if one.kind == "operator"]
    url = operator.addresses[replica]
    return RepInfo(
        operator_id=operator.id,
        replica=replica,
        my_url=url,
        port=_port(url),
        operator_spec=operator.type,
        operator_param=operator.params,
        routing=operator.routing,
        routing_param=operator.routing_field,
        next_routing=tuple(one.routing for one in readers),
        next_routing_param=tuple(one.routing_field for one in readers),
        send_info_urls=tuple(url for one in readers for url in one.addresses),
        receive_info_urls=tuple(url for one in read for url in one.addresses),
        siblings_urls=tuple(one for at, one in enumerate(operator.addresses) if at != replica),
        input=tuple(one.text for one in operator.sources),
        pms_url=pms_url,
        semantics=configuration.semantics,
        logging_lvl=configuration.logging,
        directory=str(configuration.directory),
    )


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None
