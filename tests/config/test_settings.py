from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.config.settings import Settings, SettingsError, describe, environment

LIMIT = "MAX_CONCURRENT_LLM_CALLS"
RANGE = "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE"


def test_defaults_are_those_of_the_specification():
    settings = Settings.from_env({})
    assert settings.max_concurrent_llm_calls == 5
    assert settings.retry_initial_delay == 1.0
    assert settings.retry_max_delay == 60.0
    assert settings.retry_max_attempts == 3
    assert settings.batching_enabled is False
    assert settings.llm_call_timeout == 120.0
    assert settings.redis_url is None
    assert settings.slots == 5


@pytest.mark.parametrize(
    "environ, complaint",
    [
        ({LIMIT: "0"}, "MAX_CONCURRENT_LLM_CALLS must be >= 1, got 0"),
        ({LIMIT: "-1"}, "MAX_CONCURRENT_LLM_CALLS must be >= 1, got -1"),
        ({LIMIT: "-0"}, "MAX_CONCURRENT_LLM_CALLS must be >= 1, got 0"),
        ({LIMIT: "51"}, f"MAX_CONCURRENT_LLM_CALLS must be <= 50 ({RANGE}), got 51"),
        ({LIMIT: "101", RANGE: "100"}, f"MAX_CONCURRENT_LLM_CALLS must be <= 100 ({RANGE}), got 101"),
        *(
            ({LIMIT: raw}, f"MAX_CONCURRENT_LLM_CALLS must be a whole number, got {raw!r}")
            for raw in ("abc", "", "5.0", " 5 ", "5\n", "1e1", "5_0", "+5", "--5", "0x5", "٥", "²", "True", "9" * 21)
        ),
        ({RANGE: "0"}, f"{RANGE} must be >= 1, got 0"),
        ({RANGE: "100001"}, f"{RANGE} must be <= 100000, got 100001"),
        ({"RETRY_INITIAL_DELAY": "-0.1"}, "RETRY_INITIAL_DELAY must be >= 0, got -0.1"),
        (
            {"DICAST_SLO_TARGET": "0.9"},
            "DICAST_SLO_BURN_RATE must be <= 10, the rate at which every call fails with DICAST_SLO_TARGET=0.9, "
            "got 14.4",
        ),
        ({"RETRY_MAX_DELAY": "0.5"}, "RETRY_MAX_DELAY must be >= RETRY_INITIAL_DELAY (1.0), got 0.5"),
        ({"RETRY_INITIAL_DELAY": "90"}, "RETRY_MAX_DELAY must be >= RETRY_INITIAL_DELAY (90.0), got 60.0"),
        ({"RETRY_MAX_ATTEMPTS": "0"}, "RETRY_MAX_ATTEMPTS must be >= 1, got 0"),
        *(
            ({"LLM_CALL_TIMEOUT": raw}, f"LLM_CALL_TIMEOUT must be a number, got {raw!r}")
            for raw in ("", "soon", "nan", "inf", "1e400", " 5", "1_0", "٣", "1,5")
        ),
        ({"LLM_CALL_TIMEOUT": "0"}, "LLM_CALL_TIMEOUT must be >= 0.01, got 0.0"),
        ({"LLM_CALL_TIMEOUT": "3601"}, "LLM_CALL_TIMEOUT must be <= 3600, got 3601.0"),
        *(
            ({"BATCHING_ENABLED": raw}, f"BATCHING_ENABLED must be true or false, got {raw!r}")
            for raw in ("", "maybe", "2", " true")
        ),
        ({"DICAST_LOG_LEVEL": "info"}, "DICAST_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, got 'info'"),
        ({"DICAST_RESULTS_DIR": ""}, "DICAST_RESULTS_DIR must not be empty"),
        ({"DICAST_RESULTS_DIR": "  "}, "DICAST_RESULTS_DIR must not be empty"),
        ({"DICAST_RESULT_DIR": "x"}, "unknown setting DICAST_RESULT_DIR; did you mean DICAST_RESULTS_DIR?"),
        *(
            ({name: "7"}, f"unknown setting {name}; did you mean {meant}?")
            for name, meant in {
                "MAX_CONCURENT_LLM_CALLS": "MAX_CONCURRENT_LLM_CALLS",
                "MAX_CONCURRENT_LLM_CALL": "MAX_CONCURRENT_LLM_CALLS",
                "max_concurrent_llm_calls": "MAX_CONCURRENT_LLM_CALLS",
                "RETRY_MAX_ATEMPTS": "RETRY_MAX_ATTEMPTS",
                "LLM_CALL_TIMEOUTS": "LLM_CALL_TIMEOUT",
                "BATCHING_ENALBED": "BATCHING_ENABLED",
            }.items()
        ),
        ({"DICAST_": "x"}, "unknown setting DICAST_; README.md lists them all"),
        ({"OPENAI_API_KEY": "   "}, "OPENAI_API_KEY must not be empty"),
        *(
            ({"DICAST_NODE_LABELS": raw}, "DICAST_NODE_LABELS must be labels like region=eu, of letters, digits, ")
            for raw in ("region", "=eu", "region=", "region=e u", "a=b,c", "a==b", f"a={'b' * 64}")
        ),
        (
            {"DICAST_HEARTBEAT_TIMEOUT": "2"},
            "DICAST_HEARTBEAT_TIMEOUT must be >= 3, three times DICAST_HEARTBEAT_INTERVAL, got 2",
        ),
        (
            {"DICAST_IDLE_THRESHOLD": "6"},
            "DICAST_IDLE_THRESHOLD must be <= DICAST_OVERLOAD_THRESHOLD (5), got 6",
        ),
    ],
)
def test_mistakes_name_variable_bound_and_value(environ, complaint):
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ)
    assert str(caught.value).startswith(complaint)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "environ, field, value",
    [
        ({LIMIT: "1"}, "max_concurrent_llm_calls", 1),
        ({LIMIT: "50"}, "max_concurrent_llm_calls", 50),
        ({LIMIT: "100", RANGE: "100"}, "max_concurrent_llm_calls", 100),
        ({LIMIT: "007"}, "max_concurrent_llm_calls", 7),
        ({"RETRY_INITIAL_DELAY": "0"}, "retry_initial_delay", 0.0),
        ({"RETRY_MAX_DELAY": "1e3"}, "retry_max_delay", 1000.0),
        ({"LLM_CALL_TIMEOUT": ".5"}, "llm_call_timeout", 0.5),
        ({"BATCHING_ENABLED": "TRUE"}, "batching_enabled", True),
        ({"BATCHING_ENABLED": "on"}, "batching_enabled", True),
        ({"BATCHING_ENABLED": "0"}, "batching_enabled", False),
        ({"REDIS_URL": ""}, "redis_url", None),
        ({"OPENAI_API_KEY": ""}, "openai_api_key", None),
        ({"OPENAI_API_KEY": "sk-1"}, "openai_api_key", "sk-1"),
        ({"DICAST_BROKER_URL": "amqps://u:p@a//;amqps://u:p@b//"}, "broker_url", "amqps://u:p@a//;amqps://u:p@b//"),
        ({"UNRELATED": "x"}, "requeue_budget", 5),
        ({"DICAST_NODE_LABELS": ""}, "labels", {}),
        ({"DICAST_NODE_LABELS": "region=eu, disk=ssd-1,"}, "labels", {"region": "eu", "disk": "ssd-1"}),
        ({"DICAST_NODE_ROLES": "openai, control"}, "roles", ("openai", "control")),
    ],
)
def test_good_values(environ, field, value):
    assert getattr(Settings.from_env(environ), field) == value


@given(st.dictionaries(st.sampled_from([row[0] for row in describe()]), st.text(max_size=20), max_size=3))
def test_any_text_is_a_setting_or_a_settings_error(environ):
    try:
        settings = Settings.from_env(environ)
    except SettingsError:
        return
    assert 1 <= settings.max_concurrent_llm_calls <= settings.max_concurrent_llm_calls_range
    assert settings.retry_initial_delay <= settings.retry_max_delay


@pytest.mark.parametrize(
    "url, secrets",
    [
        ("redis://:a;b@h", ["a;b", "a;b"]),
        ("redis://h?password=p%2Fw", ["p%2Fw", "p/w"]),
        ("sentinel://a:1;sentinel://:one@b/0?master=m&sentinel_password=two", ["one", "one", "two", "two"]),
    ],
)
def test_every_password_of_an_address_is_secret(url, secrets):
    assert Settings.from_env({"REDIS_URL": url}).secrets() == secrets


def test_secrets_are_listed_and_never_in_messages():
    assert Settings.from_env({"DICAST_BROKER_URL": "amqp://u:x@h;amqp://u:y@i"}).secrets() == ["x", "x", "y", "y"]
    with pytest.raises(
        SettingsError, match="DICAST_BROKER_URL must begin with amqp:// or amqps://, got a hidden value"
    ):
        Settings.from_env({"DICAST_BROKER_URL": "redis://h"})
    assert Settings.from_env({"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"}).secrets() == ["sk-1", "sk-2"]
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"OPENAI_API_KEY": "sk-canary", "DICAST_PAGE_UNITS": "0"})
    assert "canary" not in str(caught.value)


def test_every_setting_is_described_once():
    variables = [variable for variable, _, _ in describe()]
    assert len(set(variables)) == len(variables)
    defaults = {variable: default for variable, default, _ in describe()}
    assert (defaults["BATCHING_ENABLED"], defaults["REDIS_URL"], defaults[LIMIT]) == ("false", "", "5")
    assert all(help_text for _, _, help_text in describe())


def test_the_environment_wins_over_the_file(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("RETRY_MAX_ATTEMPTS=7\nLLM_CALL_TIMEOUT=9\nEMPTY\n")
    monkeypatch.setenv("RETRY_MAX_ATTEMPTS", "4")
    monkeypatch.delenv("LLM_CALL_TIMEOUT", raising=False)
    settings = Settings.from_env(
        {k: v for k, v in environment(tmp_path / ".env").items() if not k.startswith("DICAST_")}
    )
    assert (settings.retry_max_attempts, settings.llm_call_timeout) == (4, 9.0)


@pytest.mark.parametrize(
    "name",
    [
        "REDIS_URI",
        "REDIS_URLS",
        "OPENAI_API_KEYS",
        "OPENAI_API_BASE",
        "RETRY_MAX_DELAY_MS",
        "LLM_TIMEOUT",
        "RETRY_DELAY",
    ],
)
def test_a_name_that_may_be_another_programs_is_no_slip(name):
    Settings.from_env({name: "7"})


def test_a_byte_order_mark_before_a_setting_is_no_part_of_it(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRY_MAX_ATTEMPTS", raising=False)
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfRETRY_MAX_ATTEMPTS=4\n")
    assert environment(tmp_path / ".env")["RETRY_MAX_ATTEMPTS"] == "4"
