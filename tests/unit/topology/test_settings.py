import cloudpickle
import pytest

from txstorm.errors import SettingError
from txstorm.topology.settings import STORM_KEYS, Settings


def test_defaults_are_as_documented():
    settings = Settings()
    assert settings.max_spout_pending == "auto"
    assert settings.max_pack_txids is None
    assert (settings.batch_timeout, settings.enable_timeouts, settings.min_interval) == (600, True, 0)
    assert (settings.on_error, settings.error_retries, settings.max_retries) == ("fail_topology", 0, None)
    assert (settings.max_in_flight_bytes, settings.spill_bytes, settings.cargo_bytes) == (2**28, 2**23, 2**24)


PARSED = {
    "max_spout_pending": {"4": 4, "auto": "auto"},
    "max_pack_txids": {"none": None, "8": 8},
    "max_retries": {"none": None, "0": 0},
    "log_entries": {1000: "1000", " out=2000, 5000": "5000, out=2000", "none": None},
    "batch_timeout": {"1.5": 1.5},
    "enable_timeouts": {"false": False},
    "compact_on_stop": {"true": True},
    "on_error": {
        "retry(3)": "retry(3)",
        "dead_letter": "dead_letter",
        " retry(3) ,dead_letter": "retry(3), dead_letter",
    },
    "spill_bytes": {"0": 0},
}


@pytest.mark.parametrize(
    ("name", "text", "value"), [(name, *pair) for name, pairs in PARSED.items() for pair in pairs.items()]
)
def test_text_from_the_command_line_is_parsed(name, text, value):
    assert getattr(Settings.parse({name: text}), name) == value


@pytest.mark.parametrize(
    ("key", "value", "name", "found"),
    [
        ("topology.max.spout.pending", 7, "max_spout_pending", 7),
        ("topology.message.timeout.secs", "30", "batch_timeout", 30),
        ("topology.enable.message.timeouts", False, "enable_timeouts", False),
        ("topology.trident.batch.emit.interval.millis", "500", "min_interval", 0.5),
        ("transactional.zookeeper.servers", ["a", "b:2182"], "zookeeper_servers", "a,b:2182"),
        ("transactional.zookeeper.servers", "a,b", "zookeeper_servers", "a,b"),
        ("transactional.zookeeper.port", "2183", "zookeeper_port", 2183),
        ("transactional.zookeeper.root", "/x", "zookeeper_root", "/x"),
        ("storm.zookeeper.session.timeout", 500, "zookeeper_session_timeout", 0.5),
    ],
)
def test_storm_keys_are_parsed_in_storm_units(key, value, name, found):
    """Storm's keys are accepted, and their values converted from seconds or milliseconds (T44, T45)."""
    assert getattr(Settings.parse({key: value}), name) == found


INVALID = {
    "max_spout_pending": [0, "many", True],
    "max_jobs": ["1.5", True],
    "batch_timeout": [0, "nan"],
    "min_interval": [-1, "inf"],
    "on_error": ["retry(0)", "ignore", "dead_letter, retry(3)", "fail_topology, dead_letter", 3],
    "max_retries": [-1],
    "log_entries": ["5000, 6000", 999, "out", True],
    "cargo_bytes": [2**24 + 1],
    "enable_timeouts": ["perhaps"],
    "max_pack_txids": [0],
    "topology.trident.batch.emit.interval.millis": ["soon"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_an_invalid_value_is_rejected_with_its_name_and_value(name, value):
    with pytest.raises(SettingError) as refused:
        Settings.parse({name: value})
    own = STORM_KEYS.get(name, (name,))[0]
    assert own in str(refused.value)
    assert repr(value) in str(refused.value)


def test_all_faults_are_reported_at_once_with_similar_names_for_unknown_keys():
    with pytest.raises(SettingError) as refused:
        Settings.parse({"max_retrys": 1, "max_jobs": 0, "topology.max.spout.pendin": 3, "qqq": 1})
    message = str(refused.value)
    assert "unknown setting 'max_retrys' (did you mean 'max_retries'" in message
    assert "'topology.max.spout.pending'" in message
    assert "setting max_jobs: got 0" in message
    assert "unknown setting 'qqq'; known are max_spout_pending, " in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topology.transactional.id": "x"}, "first argument of TransactionalTopologyBuilder"),
        ({"max_spout_pending": 1, "topology.max.spout.pending": 2}, "max_spout_pending is given twice.*give it once"),
        ({"transactional.zookeeper.port": 70000}, r"zookeeper_port: got 70000.*65535"),
    ],
)
def test_other_settings_that_are_rejected(given, message):
    with pytest.raises(SettingError, match=message):
        Settings.parse(given)


def test_settings_are_described_comparable_and_picklable_and_updated_keeps_those_not_given():
    assert Settings.parse({"on_error": "retry(12)"}).error_retries == 12
    both = Settings.parse({"on_error": "retry(12), dead_letter"})
    assert (both.error_retries, both.dead_letters) == (12, True)
    assert (Settings().dead_letters, Settings(on_error="dead_letter").error_retries) == (False, 0)
    settings = Settings.parse({"max_jobs": 5, "max_retries": 2}).updated({"topology.max.spout.pending": "3"})
    assert (settings.max_jobs, settings.max_retries, settings.max_spout_pending) == (5, 2, 3)
    with pytest.raises(SettingError, match="max_job"):
        settings.updated({"max_job": 1})
    listed = {one.name: one for one in Settings.listed()}
    assert set(listed) == set(Settings.model_fields)
    assert all(one.description for one in listed.values())
    assert listed["batch_timeout"].storm_key == "topology.message.timeout.secs"
    assert listed["max_jobs"].storm_key is None
    settings = Settings.parse({"max_jobs": 3})
    assert cloudpickle.loads(cloudpickle.dumps(settings)) == settings
    assert hash(settings) == hash(Settings(max_jobs=3))
    with pytest.raises(ValueError, match="frozen"):
        settings.max_jobs = 4
