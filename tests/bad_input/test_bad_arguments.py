"""Invalid topologies, and arguments of `run` and of the environment: rejected before anything is created."""

import pytest
from bad_input_cases import Says, builder, check_says, go, refused, topology, unchanged, write_words
from bad_topologies import CASES, make

from txstorm import faults
from txstorm.errors import InputError, SettingError, TopologyError

SETTINGS = {
    "near name": ({"max_spout_pendng": 4}, Says(SettingError, "'max_spout_pendng'", "unknown", "'max_spout_pending'")),
    "far name": ({"zzz": 4}, Says(SettingError, "'zzz'", "unknown setting", "known are max_spout_pending")),
    "port": ({"transactional.zookeeper.port": 0}, Says(SettingError, "zookeeper_port", "got 0", "or equal to 1")),
    "zero": ({"max_group_txids": 0}, Says(SettingError, "max_group_txids", "got 0", "greater than or equal to 1")),
    "word": ({"max_jobs": "many"}, Says(SettingError, "max_jobs", "got 'many'", "valid integer")),
    "truth": ({"max_jobs": True}, Says(SettingError, "max_jobs", "got a truth value", "expected a number")),
    "infinite": ({"batch_timeout": "inf"}, Says(SettingError, "batch_timeout", "got 'inf'", "finite number")),
    "negative": ({"min_interval": -1}, Says(SettingError, "min_interval", "got -1", "greater than or equal to 0")),
    "large": ({"cargo_bytes": 1 << 30}, Says(SettingError, "cargo_bytes", "got 1073741824", "less than or equal to")),
    "policy": (
        {"on_error": "retry"},
        Says(SettingError, "on_error", "got 'retry'", "fail_topology, retry(N), dead_letter"),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name, tmp_path):
    values, says = SETTINGS[name]
    made = topology(write_words(tmp_path / "words.txt"))
    with unchanged(tmp_path), refused(says):
        go(made, tmp_path / "data", settings=values)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_builder(name, tmp_path):
    values, says = SETTINGS[name]
    made = builder(write_words(tmp_path / "words.txt")).set_settings(values)
    with refused(says._replace(kind=TopologyError)):
        made.build_topology()


ARGUMENTS = {
    "no engine": ({"engine": None}, Says(InputError, "engine None", "expected one of", "spark, local")),
    "txid as text": ({"until_txid": "3"}, Says(InputError, "until_txid", "got '3'", "at least 1")),
    "NUL": ({"data_dir": "a\0b"}, Says(InputError, "'a\\x00b'", "with a NUL character", "choose another")),
    "s3": ({"data_dir": "s3://bucket/t"}, Says(InputError, "'s3://bucket/t'", "got scheme 's3'", "local disk")),
    "abfss": ({"data_dir": "abfss://c@a/t"}, Says(InputError, "'abfss://c@a/t'", "got scheme 'abfss'", "local disk")),
    "hdfs": ({"data_dir": "hdfs://host/t"}, Says(InputError, "'hdfs://host/t'", "got scheme 'hdfs'", "local disk")),
    "journal": ({"journal": "absent/j"}, Says(InputError, "absent/j", "No such file", "choose another file")),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_run(name, in_tmp):
    options, says = ARGUMENTS[name]
    made = topology(write_words(in_tmp / "words.txt"))
    with unchanged(in_tmp), refused(says):
        go(made, **{"data_dir": in_tmp / "data", **options})


FAULTS = ["p6.before", "p6.before:stop:1", "p6.before:kill:0", "p6.after:kill:x", "p6.before:kill:²", "a:kill:1:2", "p"]


@pytest.mark.parametrize("text", FAULTS, ids=ascii)
def test_fault_points(text):
    with refused(Says(InputError, "TXSTORM_FAULT", f"got {text!r}", "expected point:kill|freeze|raise|hang:nth")):
        faults.arm(text)


@pytest.mark.parametrize("name", CASES, ids=ascii)
def test_is_refused_when_it_is_built(name, in_tmp):
    with unchanged(in_tmp), pytest.raises(TopologyError) as caught:
        make(name)
    check_says(caught.value, CASES[name][1])
    assert len(caught.value.faults) == 1
