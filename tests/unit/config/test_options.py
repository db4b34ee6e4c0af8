"""narwhal-serve's options: checks, twins, precedence, relations, what needs the store, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from narwhal.config.option_table import BY_KEY, OPTIONS, Option
from narwhal.config.options import given_options, timing_problems
from narwhal.config.start import Start, environment_warnings, read_start, with_address
from narwhal.errors import ConfigError
from narwhal.model.settings import LeaseTimings, StoreAddress
from tests.support.fleets import fleet_document, write_fleet

STORE = ("--redis-url", "redis://127.0.0.1:6379/0")

RIGHT: dict[str, tuple[str, Any]] = {
    "fleet": ("f.json", "f.json"),
    "host": ("::", "::"),
    "port": ("0", 0),
    "control-host": ("::1", "::1"),
    "control-port": ("0", 0),
    "control-key-env": ("KEY", "KEY"),
    "log-level": ("debug", "debug"),
    "log-format": ("json", "json"),
    "state-path": ("s.json", "s.json"),
    "journal": ("j.jsonl", "j.jsonl"),
    "max-concurrent": ("7", 7),
    "graceful-timeout": ("0", 0.0),
    "resume": ("true", True),
    "redis-url": ("redis://h", None),
    "redis-password-env": ("PW", "PW"),
    "cluster": ("blue-1", "blue-1"),
    "router-id": ("a:8000", "a:8000"),
    "advertise-url": ("http://a:8000/", "http://a:8000"),
    "standby": ("yes", True),
    "standby-of": ("http://a:8000", "http://a:8000"),
    "standby-probe-interval": ("0.5", 0.5),
    "standby-takeover-after": ("2", 2),
    "standby-max-handoff-age": ("2.5", 2.5),
    "lease-ttl": ("6", 6.0),
    "redis-min-replicas": ("0", 0),
    "lease-renew-interval": ("0.9", 0.9),
    "lease-safety-margin": ("0.8", 0.8),
    "failsafe": ("a:1,b:1", "a:1,b:1"),
    "no-warden": ("on", True),
}

WRONG: dict[str, tuple[str, ...]] = {
    "fleet": (" ",),
    "host": (" ",),
    "port": ("65536", "-1", "x", "1.0", "٣"),
    "control-host": (" ",),
    "control-port": ("65536", "-1", "x"),
    "control-key-env": ("$KEY", "a b"),
    "log-level": ("loud",),
    "log-format": ("xml",),
    "state-path": (" ",),
    "journal": (" ",),
    "max-concurrent": ("0", "-3", "many"),
    "graceful-timeout": ("-1", "nan", "inf", "soon"),
    "resume": ("maybe",),
    "redis-url": ("http://h", "redis+cluster://h", "redis+sentinel://h:26379"),
    "redis-password-env": ("$PW", "a b"),
    "cluster": ("a b", "{a}", "x" * 129),
    "router-id": ("a b", "x" * 129, "ä"),
    "advertise-url": ("a:8000",),
    "standby": ("maybe",),
    "standby-of": ("a:8000",),
    "standby-probe-interval": ("0", "nan"),
    "standby-takeover-after": ("0", "x"),
    "standby-max-handoff-age": ("-1", "nan"),
    "lease-ttl": ("0", "inf"),
    "redis-min-replicas": ("-1", "1.5", "all"),
    "lease-renew-interval": ("0", "x"),
    "lease-safety-margin": ("0", "-1"),
    "failsafe": ("a:1", "a:1,", "a b,c"),
    "no-warden": ("maybe",),
}

ALL_OPTIONS = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def problems_of(*argv: str, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        given_options(argv, env or {})
    return list(caught.value.problems)


def words(option: Option, text: str) -> tuple[str, ...]:
    return (option.flag,) if option.kind == "flag" else (option.flag, text)


def around(option: Option) -> tuple[str, ...]:
    """What else the command line needs for `option` to be accepted."""
    fleet = () if option.name == "fleet" else ("--fleet", "f.json")
    control = ("--control-port", "1") if option.name == "control-host" else ()
    return (*fleet, *control, *(STORE if option.needs_store else ()))


@ALL_OPTIONS
def test_an_option_and_its_twin_mean_the_same(option: Option) -> None:
    text, value = RIGHT[option.name]
    by_flag = given_options((*around(option), *words(option, text)), {})
    by_twin = given_options(around(option), {option.twin: f" {text} "})
    if option.kind == "store":
        assert by_flag.store == by_twin.store == StoreAddress(hosts=(("h", 6379),))
    else:
        assert by_flag.value(option.key) == by_twin.value(option.key) == value
    assert by_flag.sources[option.key] == "flag"
    assert by_twin.sources[option.key] == "environment"


@ALL_OPTIONS
def test_a_flag_comes_before_its_twin_and_both_before_the_default(option: Option) -> None:
    text, value = RIGHT[option.name]
    wrong = WRONG[option.name][0]
    given = given_options((*around(option), *words(option, text)), {option.twin: wrong})
    assert given.sources[option.key] == "flag"
    if option.kind != "store":
        assert given.value(option.key) == value


@ALL_OPTIONS
def test_a_wrong_value_is_told_by_the_name_it_was_given_under(option: Option) -> None:
    assert WRONG[option.name]
    for text in WRONG[option.name]:
        if option.kind != "flag":
            problems = problems_of(*around(option), option.flag, text)
            assert [problem.split()[0] for problem in problems] == [option.flag]
        if text.strip():
            problems = problems_of(*around(option), env={option.twin: text})
            assert [problem.split()[0] for problem in problems] == [option.twin]


@ALL_OPTIONS
def test_a_blank_twin_is_not_given(option: Option) -> None:
    if option.required:
        assert problems_of(env={option.twin: " "}) == ["--fleet is required (or NARWHAL_FLEET)"]
    else:
        assert option.key not in given_options(("--fleet", "f"), {option.twin: " "}).sources


def test_every_option_has_test_values() -> None:
    assert set(RIGHT) == set(WRONG) == {option.name for option in OPTIONS}


def test_all_problems_come_in_one_go() -> None:
    problems = problems_of("--port", "x", "--lease-ttl", "nan", "--log-level", "loud", *STORE)
    assert problems == [
        "--fleet is required (or NARWHAL_FLEET)",
        '--port must be an integer, got "x"',
        '--log-level must be "debug", "info", "warning" or "error", got "loud"',
        '--lease-ttl must be a finite number, got "nan"',
    ]


@pytest.mark.parametrize("flag", ["--controller", "--lease"])
def test_options_of_later_parts_and_abbreviations_are_unknown(flag: str) -> None:
    assert problems_of("--fleet", "f", flag) == [f"unrecognized arguments: {flag}"]


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.needs_store], ids=lambda o: o.name)
def test_cluster_options_need_the_store(option: Option) -> None:
    text, _ = RIGHT[option.name]
    assert problems_of("--fleet", "f", *words(option, text)) == [f"{option.flag} needs --redis-url"]
    assert problems_of("--fleet", "f", env={option.twin: text}) == [f"{option.twin} needs --redis-url"]


def test_words_of_a_choice_may_be_upper_case() -> None:
    given = given_options(("--fleet", "f", "--log-format", "JSON"), {"NARWHAL_LOG_LEVEL": "INFO"})
    assert (given.value("log_level"), given.value("log_format")) == ("info", "json")


def test_a_standby_twin_that_is_false_needs_no_store() -> None:
    assert given_options(("--fleet", "f"), {"NARWHAL_STANDBY": "false"}).value("standby") is False


def test_version_and_help_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "--help"):
        with pytest.raises(SystemExit) as caught:
            given_options((flag,), {})
        assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("narwhal ")
    assert all(option.twin in out.replace("\n", " ") for option in OPTIONS)


def test_a_wrong_store_address_is_the_only_problem() -> None:
    (problem,) = problems_of("--fleet", "f", "--redis-url", "redis://127.0.0.1:99999", "--lease-ttl", "6")
    assert problem.startswith("--redis-url ")


# --- timings ------------------------------------------------------------------------------------------


def test_the_default_timings_hold() -> None:
    assert timing_problems(LeaseTimings()) == []
    assert LeaseTimings() == given_options(("--fleet", "f"), {}).timings


@pytest.mark.parametrize(
    ("timings", "begins"),
    [
        (
            LeaseTimings(ttl_s=4.5, renew_interval_s=1.0, attempt_timeout_s=1.3),
            "--lease-renew-interval + two",
        ),
        (LeaseTimings(ttl_s=5.0, renew_interval_s=1.5), "--lease-ttl - --lease-safety-margin must be ≥ 3 x"),
        (LeaseTimings(ttl_s=11.0, safety_margin_s=1.0), "--lease-safety-margin must be ≥ 0.1 x --lease-ttl"),
        (LeaseTimings(ttl_s=86_401.0, safety_margin_s=8_641.0), "--lease-ttl must be ≤ 86400, got 86401"),
        (LeaseTimings(standby_probe_interval_s=1.5), "--standby-probe-interval must be ≤"),
    ],
)
def test_each_relation_of_the_timings_is_checked(timings: LeaseTimings, begins: str) -> None:
    problems = timing_problems(timings)
    assert len(problems) == 1
    assert problems[0].startswith(begins)


def test_timings_on_the_very_edge_hold() -> None:
    assert timing_problems(LeaseTimings(3.0, 0.9, 0.3, 0.9, 0.9)) == []


def test_given_timings_are_checked_together_with_defaults() -> None:
    problems = problems_of("--fleet", "f", "--lease-ttl", "3", *STORE)
    assert [problem.split(" must")[0] for problem in problems] == [
        "--lease-renew-interval + two attempts of 0.8 s",
        "--lease-ttl - --lease-safety-margin",
    ]


# --- start: over the fleet file -----------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    serving = {"admission": "open", "max_connections": 40, "graceful_timeout_s": 9}
    recovery = {"state_path": "/var/lib/narwhal/state.json", "resume": True}
    return write_fleet(tmp_path, fleet_document(model="Org/Tiny 1B", serving=serving, recovery=recovery))


def started(fleet: str, *argv: str, **env: str) -> Start:
    return read_start(("--fleet", fleet, *argv), env)


def test_without_options_the_file_decides(fleet: str) -> None:
    options = started(fleet).options
    assert options.state_path == "/var/lib/narwhal/state.json"
    assert options.journal_path == "/var/lib/narwhal/journal.jsonl"
    assert (options.max_concurrent, options.graceful_timeout_s, options.resume) == (40, 9.0, True)
    assert (options.host, options.port, options.store) == ("127.0.0.1", 8000, None)
    assert options.cluster == "org-tiny-1b"


def test_options_and_twins_come_before_the_file(fleet: str) -> None:
    options = started(
        fleet,
        "--state-path",
        "here/s.json",
        "--max-concurrent",
        "3",
        NARWHAL_RESUME="off",
        NARWHAL_GRACEFUL_TIMEOUT="1",
    ).options
    assert (options.state_path, options.journal_path) == ("here/s.json", "here/journal.jsonl")
    assert (options.max_concurrent, options.graceful_timeout_s, options.resume) == (3, 1.0, False)


def test_problems_of_the_file_and_of_the_password_come_together(tmp_path: Path) -> None:
    path = write_fleet(tmp_path, fleet_document(model=""))
    with pytest.raises(ConfigError) as caught:
        started(path, *STORE, "--redis-password-env", "PW")
    assert list(caught.value.problems) == [
        "--redis-password-env names PW, which is not set",
        f'{path}: model must be a nonempty string, got ""',
    ]


@pytest.mark.parametrize(
    ("value", "ending"),
    [("  ", "is blank"), ("se\x00cret", "holds a control character"), ("a\nb", "control character")],
)
def test_a_bad_password_is_told_without_its_value(fleet: str, value: str, ending: str) -> None:
    with pytest.raises(ConfigError) as caught:
        started(fleet, *STORE, "--redis-password-env", "PW", PW=value)
    assert str(caught.value).endswith(ending)
    assert value not in str(caught.value)


def test_the_named_password_comes_before_that_of_the_url_and_neither_is_shown(fleet: str) -> None:
    url = "redis://u:p%40ss@h:1/2"
    start = started(fleet, "--redis-url", url)
    assert start.options.store_password == "p@ss"
    assert start.options.store == StoreAddress(hosts=(("h", 1),), db=2, username="u")
    start = started(fleet, "--redis-url", url, "--redis-password-env", "PW", PW=" hidden \n")
    assert start.options.store_password == "hidden"
    assert "hidden" not in repr(start)
    assert "p@ss" not in repr(start)


def test_the_control_key_is_read_from_the_named_variable_and_never_shown(fleet: str) -> None:
    start = started(fleet, "--control-key-env", "NARWHAL_CONTROL_KEY", NARWHAL_CONTROL_KEY=" hidden ")
    assert start.options.control_key == "hidden"
    assert "hidden" not in repr(start)
    assert started(fleet).options.control_key == ""
    with pytest.raises(ConfigError, match="--control-key-env names NARWHAL_CONTROL_KEY, which is not set"):
        started(fleet, "--control-key-env", "NARWHAL_CONTROL_KEY")


def test_fail_safe_voters_are_listed_once_each_and_want_a_control_key(fleet: str) -> None:
    start = started(fleet, *STORE, "--failsafe", "a:1,b:1")
    assert start.options.failsafe == ("a:1", "b:1")
    assert [line.split(":")[0] for line in start.warnings] == ["--failsafe without --control-key-env"]
    assert started(fleet, *STORE, "--failsafe", "a,b", "--control-key-env", "K", K="k").warnings == ()
    assert started(fleet, *STORE).options.failsafe == ()
    assert problems_of("--fleet", "f", *STORE, "--failsafe", "a,b,a") == ["--failsafe names a twice"]


def test_router_id_and_url_come_from_host_name_and_bound_port(fleet: str) -> None:
    options = with_address(started(fleet, "--host", "0.0.0.0", "--port", "0").options, "node é", port=4711)
    assert (options.router_id, options.advertise_url) == ("node--:4711", "http://node--:4711")
    assert options.port == 4711
    options = with_address(started(fleet).options, "node", port=8000)
    assert (options.router_id, options.advertise_url) == ("node:8000", "http://127.0.0.1:8000")
    options = with_address(started(fleet, "--host", "[::1]").options, "node", port=8000)
    assert (options.host, options.advertise_url) == ("::1", "http://[::1]:8000")
    long = with_address(started(fleet).options, "n" * 300, port=8000)
    assert len(long.router_id) == 128
    assert BY_KEY["router_id"].rule.accepts(long.router_id)


def test_given_names_stay(fleet: str) -> None:
    start = started(fleet, "--router-id", "a", "--advertise-url", "http://lb", "--cluster", "c")
    options = with_address(start.options, "node", port=1)
    assert (options.router_id, options.advertise_url, options.cluster) == ("a", "http://lb", "c")


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ((), "http://127.0.0.1:9000"),
        (("--control-host", "0.0.0.0"), "http://127.0.0.1:9000"),
        (("--host", "::"), "http://node:9000"),
        (("--host", "::", "--control-host", "[::1]"), "http://[::1]:9000"),
        (("--host", "::", "--advertise-url", "https://a.example:443"), "http://a.example:9000"),
    ],
)
def test_orders_are_taken_at_the_advertised_host_on_the_control_port(
    fleet: str, words: tuple[str, ...], url: str
) -> None:
    start = started(fleet, "--control-port", "0", *words)
    options = with_address(start.options, "node", port=8000, control_port=9000)
    assert (options.control_url, options.control_port) == (url, 9000)


def test_without_a_control_port_orders_are_taken_where_clients_are(fleet: str) -> None:
    options = with_address(started(fleet).options, "node", port=8000)
    assert (options.control_url, options.control_port) == (options.advertise_url, None)
    assert problems_of("--fleet", "f", "--control-host", "::1") == ["--control-host needs --control-port"]


# --- the environment ----------------------------------------------------------------------------------


def test_unknown_variables_are_warned_of_with_the_near_one() -> None:
    env = {"NARWHAL_LEASE_TLT": "3", "NARWHAL_COLOUR": "red", "NARWHAL_HOST": "::", "PATH": "/bin"}
    env["NARWHAL_ROUTER"] = "http://a:9000"
    assert environment_warnings(env, ()) == [
        "NARWHAL_COLOUR is not a known variable",
        "NARWHAL_LEASE_TLT is not a known variable; did you mean NARWHAL_LEASE_TTL?",
    ]


def test_variables_that_fields_and_options_name_are_known(tmp_path: Path) -> None:
    document = fleet_document(
        engine={"engine_api_key_env": "NARWHAL_ENGINE_API_KEY"}, serving__admission="open"
    )
    document["engines"][0]["url"] = "${NARWHAL_E0}"
    env = {"NARWHAL_E0": "http://e0", "NARWHAL_ENGINE_API_KEY": "k", "NARWHAL_PW": "p"}
    start = started(write_fleet(tmp_path, document), *STORE, "--redis-password-env", "NARWHAL_PW", **env)
    assert start.warnings == ()


def test_a_kubernetes_service_link_is_ignored_with_one_warning(fleet: str) -> None:
    env = {
        "NARWHAL_PORT": "tcp://10.0.0.1:8000",
        "NARWHAL_PORT_8000_TCP_ADDR": "10.0.0.1",
        "NARWHAL_SERVICE_HOST": "10.0.0.1",
    }
    start = started(fleet, **env)
    assert start.options.port == 8000
    assert len(start.warnings) == 1
    assert "enableServiceLinks: false" in start.warnings[0]
    of_control = {name.replace("NARWHAL_", "NARWHAL_CONTROL_"): value for name, value in env.items()}
    start = started(fleet, **of_control)
    assert start.options.control_port is None
    assert len(start.warnings) == 1
    assert start.warnings[0].startswith("NARWHAL_CONTROL_PORT is a Kubernetes service link")


def test_more_requests_than_connections_are_warned_about(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, fleet_document(serving={"admission": "open", "max_connections": 8}))
    assert started(fleet, "--max-concurrent", "8").warnings == ()
    (warning,) = started(fleet, "--max-concurrent", "9").warnings
    assert warning.startswith("--max-concurrent 9 is above serving.max_connections 8")
