"""The settings of a topology: what may be set, in which range, under which of Storm's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from txstorm.api.names import near
from txstorm.errors import SettingError

MIB = 1024 * 1024
STORM_KEYS: dict[str, tuple[str, float]] = {
    "topology.max.spout.pending": ("max_spout_pending", 1),
    "topology.message.timeout.secs": ("batch_timeout", 1),
    "topology.enable.message.timeouts": ("enable_timeouts", 1),
    "topology.trident.batch.emit.interval.millis": ("min_interval", 1000),
    "transactional.zookeeper.servers": ("zookeeper_servers", 1),
    "transactional.zookeeper.port": ("zookeeper_port", 1),
    "transactional.zookeeper.root": ("zookeeper_root", 1),
    "storm.zookeeper.session.timeout": ("zookeeper_session_timeout", 1000),
}
"""Storm's key → the setting's name, and how many of Storm's units make one of ours."""

_LATER = {
    "topology.transactional.id": "the id is the first argument of TransactionalTopologyBuilder; set it there",
}


_POLICY = re.compile(r"fail_topology|dead_letter|retry\([1-9][0-9]{0,5}\)( *, *dead_letter)?")


_LETTERS = re.compile(r"(?P<count>[0-9]{1,18})|(?P<percent>[0-9]{1,3}(\.[0-9]{1,9})?) *%")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        msg = "expected a number, got a truth value"
        raise ValueError(msg)
    return value


def _none_word(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in ("none", "null", "") else value


def _host_list(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _error_policy(value: Any) -> Any:
    if isinstance(value, str) and (found := _POLICY.fullmatch(value.strip())):
        return ", ".join(found.group(0).replace(" ", "").split(","))
    msg = "expected fail_topology, retry(N), dead_letter, or 'retry(N), dead_letter', with N >= 1"
    raise ValueError(msg)


def _letters_limit(value: Any) -> Any:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    text = _none_word(value)
    if text is None:
        return None
    if isinstance(text, str) and (found := _LETTERS.fullmatch(text.strip())):
        if found["count"] is not None:
            return int(found["count"])
        if float(found["percent"]) <= 100:
            return f"{float(found['percent']):g}%"
    msg = "expected N or P%, such as 10 or 0.5%, or none"
    raise ValueError(msg)


Count = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
Size = Annotated[int, Field(ge=0), BeforeValidator(_no_bool)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_bool)]


class SettingInfo(NamedTuple):
    """One setting as the command line lists it."""

    name: str
    default: Any
    description: str
    storm_key: str | None


class Settings(BaseModel):
    """The settings of one topology; immutable. Sizes are bytes, times are seconds.

    `Settings.parse` takes text from outside and Storm's dotted keys; the constructor takes typed values by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_spout_pending: Count | Literal["auto"] = Field(
        "auto", description="transactions in flight at once; auto: up to 256, bounded by max_in_flight_bytes"
    )
    max_pack_txids: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        None, description="transactions one job processes at most; none: as many as pay"
    )
    max_group_txids: Count = Field(64, description="transactions decided and published together at most")
    finish_ahead: bool = Field(
        True, description="whether committers finish the next group while the one before it is published"
    )
    max_jobs: Count = Field(2, description="jobs that process at the same time")
    batch_timeout: Duration = Field(
        600.0, description="seconds after which a batch, in either phase, is given up and tried again"
    )
    enable_timeouts: bool = Field(True, description="whether batch_timeout applies")
    min_interval: Seconds = Field(0.0, description="seconds between the starts of two transactions at least")
    on_error: Annotated[str, BeforeValidator(_error_policy)] = Field(
        "fail_topology",
        description="what an exception does: fail_topology, retry(N), dead_letter, or retry(N), dead_letter",
    )
    max_dead_letters: Annotated[int | str | None, BeforeValidator(_letters_limit)] = Field(
        None,
        description="dead letters of a run beyond which it fails: N, or P% of its input rows; none: no limit",
    )
    retry_backoff: Seconds = Field(0.05, description="seconds before a failed batch is tried again; doubles")
    retry_backoff_max: Seconds = Field(5.0, description="seconds between two tries of a batch at most")
    max_retries: Annotated[Size | None, BeforeValidator(_none_word)] = Field(
        None, description="tries after a FailedException before it counts as an exception that lasts; none: unlimited"
    )
    max_in_flight_bytes: Count = Field(256 * MIB, description="bytes of processed, undecided batches at most")
    spill_bytes: Size = Field(
        8 * MIB, description="bytes of committers' input per task and transaction beyond which it goes through a file"
    )
    large_commit_rows: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        1_000_000,
        description="rows of a committer's input in a transaction beyond which a job commits it, where that is "
        "possible; none: no bound",
    )
    large_commit_bytes: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        256 * MIB, description="the same in bytes"
    )
    cargo_bytes: Annotated[Count, Field(le=16 * MIB)] = Field(
        16 * MIB, description="bytes of one row between tasks at most; 16 MiB is the upper bound"
    )
    index_cache_bytes: Count = Field(
        1024 * MIB, description="bytes of states in the driver's memory at most; what is more is looked up on disk"
    )
    state_max_lag: Annotated[Duration | None, BeforeValidator(_none_word)] = Field(
        10.0,
        description="seconds that the table of a state may be behind its changes while the topology is busy; more "
        "where keeping it up to date would take more than 3 % of a core; none: no bound",
    )
    compact_on_stop: bool = Field(True, description="bring state tables up to date when the run stops")
    history_retention: Annotated[Duration | None, BeforeValidator(_none_word)] = Field(
        None,
        description="seconds for which earlier transactions can be read and gone back to; none: for good. What is "
        "older is removed, but for what savepoints need",
    )
    log_retention: Annotated[Duration, Field(le=36_500 * 86_400)] = Field(
        86_400.0,
        description="seconds that other readers can go back in the log of a table, and a streaming query of it may "
        "stand still; earlier entries are archived, for txstorm",
    )
    ledger: Annotated[str | None, BeforeValidator(_none_word)] = Field(
        None,
        description="where the coordinator remembers: sqlite:PATH, zookeeper:HOSTS/CHROOT, delta:URI or memory; "
        "none: ledger.db in the data directory",
    )
    keep_intents: Count = Field(3, description="published intents that are kept with their files")
    zookeeper_servers: Annotated[str, BeforeValidator(_host_list)] = Field(
        "", description="host:port,… of the ensemble that keeps the ledger; empty: the ledger is not in ZooKeeper"
    )
    zookeeper_port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(_no_bool)] = Field(
        2181, description="port of servers that are given without one"
    )
    zookeeper_root: str = Field("/transactional", description="node below which the ledger is, under the topology's id")
    zookeeper_session_timeout: Duration = Field(
        10.0, description="seconds after which ZooKeeper frees the lease of a run it does not hear of"
    )
    zookeeper_connect_timeout: Duration = Field(5.0, description="seconds to find a ZooKeeper server at the start")
    zookeeper_patience: Duration = Field(
        30.0, description="seconds that a run waits for ZooKeeper to come back, before it steps down"
    )
    zookeeper_acl: Literal["creator", "open"] = Field(
        "creator",
        description="who may change the ledger's nodes: creator, the user of TXSTORM_ZOOKEEPER_AUTH; or open, every "
        "client of the servers, where there are no credentials",
    )
    zookeeper_tls: bool = Field(
        False, description="whether to speak TLS with ZooKeeper; a CA or certificate implies it"
    )
    zookeeper_ca: str = Field("", description="PEM file of the authorities to trust; empty: those of the system")
    zookeeper_certificate: str = Field(
        "", description="PEM file of this client's certificate, if the servers ask for it"
    )
    zookeeper_key: str = Field("", description="PEM file of the key of that certificate")
    zookeeper_check_hostname: bool = Field(
        True, description="whether a server's certificate must be of its host's name"
    )

    @property
    def error_retries(self) -> int:
        """N of ``retry(N)`` in `on_error`, 0 without it."""
        return int(self.on_error[6 : self.on_error.index(")")]) if self.on_error.startswith("retry(") else 0

    @property
    def dead_letters(self) -> bool:
        """Whether records that always fail go to the dead-letter table, instead of ending the topology."""
        return self.on_error.endswith("dead_letter")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Settings:
        """Read settings from outside: text such as ``"4"`` or ``"true"`` and Storm's dotted keys are accepted.

        Raises:
            SettingError: all unknown keys (with near ones) and impossible values at once.
        """
        settings, faults = cls.read(values)
        if settings is None:
            raise SettingError("\n".join(faults))
        return settings

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
        """As `parse`, but returns the faults; the settings are None when there is one."""
        named, faults = _named(values)
        try:
            settings = cls.model_validate(named)
        except ValidationError as error:
            return None, faults + _sentences(error)
        if settings.max_dead_letters is not None and not settings.dead_letters:
            faults.append(
                f"setting max_dead_letters: got {settings.max_dead_letters!r}, but on_error is {settings.on_error!r}, "
                "which leaves nothing out; set on_error to dead_letter, too"
            )
        return (None, faults) if faults else (settings, [])

    def updated(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with `changes` read over them; raises `SettingError` as `parse` does."""
        named, faults = _named(changes)
        if faults:
            raise SettingError("\n".join(faults))
        return self.parse({**self.model_dump(), **named})

    @classmethod
    def listed(cls) -> list[SettingInfo]:
        """All settings with their defaults, one-line descriptions and Storm's keys, for the command line."""
        storm = {name: key for key, (name, _) in STORM_KEYS.items()}
        fields = cls.model_fields.items()
        return [SettingInfo(name, one.default, one.description or "", storm.get(name)) for name, one in fields]


def _named(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`values` under the settings' own names, and the faults of the keys."""
    named: dict[str, Any] = {}
    faults = []
    for key, value in values.items():
        name, scaled = _own_name(str(key), value)
        if name not in Settings.model_fields:
            faults.append(_unknown(str(key)))
        elif name in named:
            faults.append(f"setting {name} is given twice (also as {key!r}); give it once")
        else:
            named[name] = scaled
    return named, faults


def _own_name(key: str, value: Any) -> tuple[str, Any]:
    name, units = STORM_KEYS.get(key, (key, 1))
    if units == 1 or isinstance(value, bool):
        return name, value
    try:
        return name, float(value) / units
    except (TypeError, ValueError):
        return name, value


def _unknown(key: str) -> str:
    for prefix, sentence in _LATER.items():
        if key.startswith(prefix):
            return f"setting {key!r}: {sentence}"
    known = [*Settings.model_fields, *STORM_KEYS]
    hint = near(key, known) or f"; known are {', '.join(Settings.model_fields)}"
    return f"unknown setting {key!r}{hint}"


def _sentences(error: ValidationError) -> list[str]:
    """One sentence per setting, however many alternatives of its type were tried."""
    tried: dict[str, tuple[Any, list[str]]] = {}
    for one in error.errors(include_url=False):
        name = str(one["loc"][0])
        tried.setdefault(name, (one["input"], []))[1].append(one["msg"].removeprefix("Value error, "))
    return [
        f"setting {name}: got {value!r}: {' or '.join(_lower(reason) for reason in reasons)}"
        for name, (value, reasons) in tried.items()
    ]


def _lower(reason: str) -> str:
    return reason[0].lower() + reason[1:]
