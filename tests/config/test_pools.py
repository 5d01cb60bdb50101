from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dicast.app.domain.text import PoolName
from dicast.config.pools import Pools, PoolsError, UnknownPool, _toml

SHIPPED = Path(__file__).parents[2] / "config" / "pools.toml"


def one(lines: str) -> Pools:
    return Pools.parse(f"[pools.p]\n{lines}")


def test_the_file_shipped():
    pools = Pools.load(SHIPPED)
    assert list(pools.pools) == ["local", "local-anthropic", "openai", "anthropic", "ollama"]
    assert pools.get("") is pools.get("local")
    assert pools.findings() == []
    assert pools.get("local-anthropic").dialect == "anthropic"
    assert pools.get("ollama").base_url == "http://127.0.0.1:11434/v1"


@pytest.mark.parametrize(
    "lines, expected",
    [
        (
            'provider = "openai"\nmodel = "m"',
            {
                "dialect": "openai",
                "api_key_env": "OPENAI_API_KEY",
                "max_tokens_field": "max_completion_tokens",
                "schema_lengths": False,
                "structured_output": True,
                "base_url": None,
            },
        ),
        (
            'provider = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"',
            {"api_key_env": None, "max_tokens_field": "max_tokens", "schema_lengths": True},
        ),
        (
            'provider = "openai"\nmodel = "m"\nbase_url = "https://api.openai.com/v1"\napi_key_env = "MINE"',
            {"api_key_env": "MINE", "max_tokens_field": "max_completion_tokens"},
        ),
        (
            'provider = "openai"\nmodel = "m"\nbase_url = "https://x.openai.azure.com"\napi_version = "2026-01-01"',
            {"api_version": "2026-01-01", "max_tokens_field": "max_completion_tokens", "schema_lengths": False},
        ),
        (
            'provider = "anthropic"\nmodel = "m"',
            {"dialect": "anthropic", "api_key_env": "ANTHROPIC_API_KEY", "structured_channel": "json_schema"},
        ),
        (
            'provider = "anthropic"\nmodel = "m"\nbase_url = "https://llm.example/api"',
            {"structured_channel": "tool", "api_key_env": None, "structured_output": True},
        ),
        (
            'provider = "local"',
            {"dialect": "openai", "structured_output": True, "api_key_env": None, "nonce_in_schema": True},
        ),
        ('provider = "local"\nnonce_in_schema = false', {"nonce_in_schema": False}),
        ('provider = "openai"\nmodel = "m"', {"nonce_in_schema": False}),
        ('provider = "local"\ndialect = "anthropic"', {"structured_output": True, "structured_channel": "tool"}),
        (
            'provider = "simulated"\ndialect = "anthropic"\nmodel = "m"',
            {"structured_output": True, "structured_channel": "tool"},
        ),
        ('provider = "openai"\nmodel = "m"\napi_key_env = ""', {"api_key_env": None}),
        (
            'provider = "local"\nlimit = 3\nceiling = 3\nadaptive = false\nrpm = 60\ntpm = 1000\n'
            "timeout_s = 5\ntrust_env = true",
            {"limit": 3, "ceiling": 3, "adaptive": False, "rpm": 60, "tpm": 1000, "timeout_s": 5.0, "trust_env": True},
        ),
        ('provider = "local"\nheaders = { x-team = "blue" }', {"headers": {"x-team": "blue"}}),
        ('provider = "local"\nlatency_target_s = 3', {"latency_target_s": 3.0}),
        ('provider = "local"\nproject_max = 0.5', {"project_max": {"*": 0.5}}),
        ('provider = "local"\nproject_max = { news = 20, "*" = 0.25 }', {"project_max": {"news": 20, "*": 0.25}}),
    ],
)
def test_defaults_follow_from_who_answers(lines, expected):
    spec = one(lines).get("p")
    assert {name: getattr(spec, name) for name in expected} == expected


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "needs at least one table [pools.<name>]"),
        ("pools = 3", "needs at least one table [pools.<name>]"),
        ("[pools]", "needs at least one table [pools.<name>]"),
        ("x = [", "is no TOML"),
        ('[pools.p]\nprovider = "local"\n[pool.q]', "unknown key 'pool'; did you mean 'pools'?"),
        ('default = "q"\n[pools.p]\nprovider = "local"', "default must name one of the pools (p), got 'q'"),
        ("default = 1\n[pools.p]\nprovider = 'local'", "default must name one of the pools (p), got 1"),
        ('[pools.a]\nprovider = "local"\n[pools.b]\nprovider = "local"', "default must name one of the pools (a, b)"),
        ('[pools."a b"]\nprovider = "local"', "pool name 'a b' may hold only"),
        ('[pools.""]\nprovider = "local"', "pool name '' may hold only"),
        (f'[pools.{"x" * 101}]\nprovider = "local"', "may hold only"),
        ("[pools]\np = 3", "pool 'p' must be a table"),
        ("[pools.p]", "pool 'p': provider is missing"),
        (
            '[pools.p]\nprovider = "opena"',
            "pool 'p': provider must be one of openai, anthropic, local, simulated, got 'opena'; did you mean 'openai'",
        ),
        (
            '[pools.p]\nprovider = "openai"\ndialect = "antropic"',
            "pool 'p': dialect must be one of openai, anthropic, got 'antropic'; did you mean 'anthropic'?",
        ),
        (
            '[pools.p]\nprovider = "local"\nzzz = 1',
            "pool 'p': unknown key 'zzz'; there are provider, dialect, api, ",
        ),
        ('[pools.p]\nprovidr = "openai"', "pool 'p': unknown key 'providr'; did you mean 'provider'?"),
        ('[pools.p]\nprovider = "openai"', "pool 'p': model is missing"),
        ('[pools.p]\nprovider = "openai"\nmodel = ""', "pool 'p': model must be a printable text"),
        ('[pools.p]\nprovider = "openai"\nmodel = "a\\u0007"', "pool 'p': model must be a printable text"),
        (
            '[pools.p]\nprovider = "openai"\nmodel = "m"\ndialect = "anthropic"',
            "dialect must be 'openai' with provider",
        ),
        ('[pools.p]\nprovider = "local"\nlimit = 0', "pool 'p': limit must be a whole number from 1 to 100000, got 0"),
        *(
            (f'[pools.p]\nprovider = "local"\nproject_max = {wrong}', "project_max must be a share below 1 or a whole")
            for wrong in ("0", "1.5", "true", '"half"', "{ a = -1 }", "nan")
        ),
        ('[pools.p]\nprovider = "local"\nlimit = true', "limit must be a whole number from 1 to 100000, got True"),
        ('[pools.p]\nprovider = "local"\nlimit = "5"', "limit must be a whole number from 1 to 100000, got '5'"),
        ('[pools.p]\nprovider = "local"\nlimit = 5.0', "limit must be a whole number"),
        ('[pools.p]\nprovider = "local"\nadaptive = false', "adaptive = false needs a limit to hold"),
        ('[pools.p]\nprovider = "local"\nlimit = 9\nceiling = 5', "limit must be <= ceiling (5), got 9"),
        ('[pools.p]\nprovider = "local"\nrpm = -1', "rpm must be a whole number"),
        ('[pools.p]\nprovider = "local"\ntimeout_s = nan', "timeout_s must be a number of seconds from 0.01 to 3600"),
        ('[pools.p]\nprovider = "local"\ntimeout_s = 0', "timeout_s must be a number of seconds"),
        *(
            (
                f'[pools.p]\nprovider = "local"\nlatency_target_s = {wrong}',
                f"pool 'p': latency_target_s must be a number of seconds from 0.01 to 3600, got {shown}",
            )
            for wrong, shown in (("0", "0"), ("-2", "-2"), ("3601", "3601"), ("true", "True"), ('"2 s"', "'2 s'"))
        ),
        (
            '[pools.p]\nprovider = "local"\nlimit = 2\nadaptive = false\nlatency_target_s = 2',
            "latency_target_s needs a limit that moves, but adaptive is false",
        ),
        (
            '[pools.p]\nprovider = "local"\ntimeout_s = 2\nlatency_target_s = 2.0',
            "latency_target_s must be < timeout_s (2), got 2",
        ),
        ('[pools.p]\nprovider = "simulated"\naccount = "q"', "unknown key 'account'"),
        *(
            (
                f'[pools.p]\nprovider = "simulated"\nlimits_by_model = {wrong}',
                "limits_by_model must be a list of up to 50 different names of models, got",
            )
            for wrong in ('"m"', '["m", "m"]', '[" m"]', '[""]', str([f"m{n}" for n in range(51)]))
        ),
        (
            '[pools.p]\nprovider = "local"\nlimits_by_model = ["m"]',
            "limits_by_model must be left out: the provider 'local' serves one model",
        ),
        (
            '[pools.p]\nprovider = "simulated"\nlimits_by_model = ["m"]\nrpm = 60',
            "pool 'p': rpm must be left out with limits_by_model: each model would keep it, got 60",
        ),
        (
            '[pools.p]\nprovider = "simulated"\nlimits_by_model = ["a/b", "a-b"]',
            "pool 'p': limits_by_model gives 'a-b' a pool 'p:a-b', and there is another one of that name",
        ),
        (
            'default = "p"\n[pools.p]\nprovider = "simulated"\nlimits_by_model = ["m"]\n'
            '[pools."p:m"]\nprovider = "simulated"',
            "pool 'p': limits_by_model gives 'm' a pool 'p:m', and there is another one of that name",
        ),
        (
            f'[pools.p]\nprovider = "simulated"\nlimits_by_model = ["{"m" * 99}"]',
            "would be a pool's name, with more than 100 characters",
        ),
        ('[pools.p]\nprovider = "local"\nstructured_output = "yes"', "structured_output must be true or false"),
        ('[pools.p]\nprovider = "local"\nstructured_channel = "tool"', "structured_channel must be json_schema"),
        ('[pools.p]\nprovider = "local"\napi_version = "1"', "api_version is for Azure"),
        ('[pools.p]\nprovider = "anthropic"\nmodel = "m"\napi_version = "1"', "api_version is for dialect 'openai'"),
        ('[pools.p]\nprovider = "local"\nheaders = { "a b" = "c" }', "headers must be a table of texts"),
        ('[pools.p]\nprovider = "local"\nheaders = { a = "b\\r\\nc: d" }', "headers must be a table of texts"),
        ('[pools.p]\nprovider = "local"\nquery = { a = 1 }', "query must be a table of texts"),
        *(
            (f'[pools.p]\nprovider = "local"\nlabels = {wrong}', "labels must be a table of labels, such as { region")
            for wrong in ('"region=eu"', '{ region = "" }', "{ region = 1 }", '{ "re gion" = "eu" }', '["eu"]')
        ),
    ],
)
def test_mistakes_name_pool_field_and_value(text, complaint):
    with pytest.raises(PoolsError) as caught:
        Pools.parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "lines",
    [
        'provider = "openai"\nmodel = "m"\napi_key = "sk-canary"',
        'provider = "openai"\nmodel = "m"\napi_key_env = "sk-canary"',
        'provider = "openai"\nmodel = "m"\nbase_url = "https://user:sk-canary@host/v1"',
        'provider = "openai"\nmodel = "m"\nheaders = { x = "sk-canary\\n" }',
        'provider = "openai"\nmodel = "m"\nquery = { "a b" = "sk-canary" }',
    ],
)
def test_secrets_in_the_wrong_place_are_refused_and_not_shown(lines):
    with pytest.raises(PoolsError) as caught:
        one(lines)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "", "api.openai.com/v1", "ftp://host", "file:///etc/passwd", "http://", "http:///v1", "https://host/v1?key=1",
        "https://host/v1#x", "https://u@host", "https://u:p@host", "https://host:0/", "https://host:99999/",
        "https://host:x/", "https://ho st/", "https://host\\\\@evil/", "https://h\\u00f6st/", "https://host/\\n", "https://[::1",
    ],
)  # fmt: skip
def test_addresses_that_are_none(url):
    with pytest.raises(PoolsError, match="base_url must be an address"):
        one(f'provider = "openai"\nmodel = "m"\nbase_url = "{url}"')


@pytest.mark.parametrize(
    "url, warned",
    [
        ("http://127.0.0.1:1/v1", False),
        ("http://127.9.9.9/v1", False),
        ("http://localhost/v1", False),
        ("http://LOCALHOST./v1", False),
        ("http://box.localhost/v1", False),
        ("http://[::1]:11434/v1", False),
        ("https://api.example/v1", False),
        ("http://api.example/v1", True),
        ("http://10.0.0.5:8000/v1", True),
        ("http://localhost.evil.example/v1", True),
        ("http://127.0.0.1.evil.example/v1", True),
        ("http://2130706433/v1", True),
        ("http://0.0.0.0/v1", True),
    ],
)
def test_plain_http_to_another_machine_is_a_finding(url, warned):
    findings = one(f'provider = "openai"\nmodel = "m"\nbase_url = "{url}"').findings()
    assert [finding.pool for finding in findings] == (["p"] if warned else [])
    assert all(url in finding.message for finding in findings)


def test_a_flat_document_is_the_default_pool():
    pools = Pools.parse('provider = "openai"\nmodel = "m"\nlimit = 4')
    assert pools.default == "default"
    assert pools.get("").limit == 4
    with pytest.raises(PoolsError, match="pool 'default': unknown key 'limmit'"):
        Pools.parse('provider = "local"\nlimmit = 4')


@pytest.mark.parametrize(
    "text",
    [
        SHIPPED.read_text(),
        'provider = "openai"\nmodel = "m"\nlimit = 4',
        'provider = "openai"\nmodel = "m"\napi_key_env = ""',
        'provider = "anthropic"\nmodel = "m \\"q\\" \\\\ \u00fc"\nbase_url = "https://llm.example/"\napi_key_env = "X"',
        'provider = "openai"\nmodel = "m"\nbase_url = "https://x.openai.azure.com"\napi_version = "2026-01-01"',
        '[pools."a:b.c"]\nprovider = "local"\nheaders = { x-team = "blue", "x.y" = "z" }\nquery = { q = "1" }',
        'provider = "simulated"\ndialect = "anthropic"\nstructured_output = false\nstructured_channel = "json_schema"',
        'provider = "local"\nlimit = 3\nceiling = 3\nrpm = 60\ntpm = 1000\ntimeout_s = 0.05\ntrust_env = true',
        'provider = "local"\nlatency_target_s = 1.5\ntimeout_s = 60',
        'provider = "local"\nmax_tokens_field = "max_completion_tokens"\nschema_lengths = false',
        'provider = "local"\nproject_max = { "a b" = 20, "*" = 0.25 }',
        'provider = "local"\nlabels = { region = "eu", "dicast.io/zone" = "b-1" }',
        'provider = "openai"\nmodel = "m"\nlimits_by_model = ["m", "meta/n"]\nprice = { input = 1, output = 2 }',
    ],
)
def test_every_file_is_written_again_as_it_was_understood(text):
    pools = Pools.parse(text)
    again = Pools.parse(pools.to_toml())
    assert again == pools
    assert (pools.flat, again.flat) == ("[pools" not in text, False)
    assert again.to_toml() == pools.to_toml()


_OPTIONS = {
    "limit": st.integers(1, 50), "ceiling": st.integers(50, 100), "rpm": st.integers(1, 10**9),
    "timeout_s": st.floats(0.01, 3600), "trust_env": st.booleans(), "structured_output": st.booleans(),
    "api_key_env": st.sampled_from(["", "KEY"]), "base_url": st.just("https://llm.example/v1"),
    "headers": st.dictionaries(st.sampled_from(["x-a", "x.b"]), st.text("aZ\"\\\\'#= ", max_size=8)),
}  # fmt: skip


@given(st.sampled_from(["openai", "anthropic", "local", "simulated"]), st.fixed_dictionaries({}, optional=_OPTIONS))
def test_any_options_survive(provider, options):
    lines = [f"{key} = {_toml(value)}" for key, value in {"provider": provider, "model": "m", **options}.items()]
    pools = Pools.parse("\n".join(lines))
    assert Pools.parse(pools.to_toml()) == pools


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('params = ["top_p", "messages"]', "params must be a list of up to 50 names of parameters, without temp"),
        ('params = ["n"]', "tool_choice, stream, n, prompt_cache_key, logprobs, top_logprobs, got ['n']"),
        ('params = ["logprobs"]', "logprobs, top_logprobs, got ['logprobs']"),
        ("body = { top_logprobs = 3 }", "without tables in lists, got {'top_logprobs': 3}"),
        ('param_names = { seed = "messages" }', "param_names must be a table of parameters and their names"),
        ('param_names = { seed = "a b" }', "param_names must be a table of parameters and their names"),
        ('param_names = { sed = "random_seed" }', "param_names: unknown parameter 'sed'; did you mean 'seed'?"),
        ('param_names = { top_k = "topK" }', "param_names: unknown parameter 'top_k'"),
        ("body = { messages = [] }", "body must be a table such as { provider = { require_parameters = true } }"),
        ("body = { since = 2026-01-01 }", "without dates, and without tables in lists, got {'since'"),
        ("body = { a = [{ b = 1 }] }", "without dates, and without tables in lists, got {'a'"),
        (
            'body = { reasoning = { max = 1 } }\nparam_names = { effort = "reasoning.effort" }',
            "body: reasoning is where effort stands in calls, got {'max': 1}",
        ),
        ('body = { top_p = 1 }\nparams = ["top_p"]', "body: top_p is where top_p stands in calls, got 1"),
        (
            'effort = "low"\nparam_names = { effort = "" }',
            "effort must be left out where param_names says that there is none, got 'low'",
        ),
    ],
)
def test_parameters_that_calls_cannot_have_are_refused(lines, said):
    with pytest.raises(PoolsError) as refused:
        one(f'provider = "openai"\nmodel = "m"\n{lines}')
    assert said in str(refused.value)


def test_parameters_have_the_names_that_the_file_says():
    spec = one(
        'provider = "openai"\nmodel = "m"\nparams = ["top_k"]\n'
        'param_names = { seed = "random_seed", top_k = "extra.topK", service_tier = "" }'
    ).get("p")
    names = ("temperature", "effort", "seed", "service_tier", "top_k")
    assert [spec.field_of(name) for name in names] == [
        "temperature", "reasoning_effort", "random_seed", "", "extra.topK"
    ]  # fmt: skip
    assert one('provider = "anthropic"\nmodel = "m"').get("p").field_of("effort") == "output_config.effort"


def test_a_pool_adds_fields_of_its_own_to_each_call():
    body = '{ provider = { only = ["a", "b"], require_parameters = true }, x = 1.5 }'
    pools = one(f'provider = "openai"\nmodel = "m"\nbody = {body}')
    assert pools.get("p").body == {"provider": {"only": ["a", "b"], "require_parameters": True}, "x": 1.5}
    assert Pools.parse(pools.to_toml()) == pools


def test_unknown_pools_propose_the_nearest():
    with pytest.raises(UnknownPool, match=r"there is no pool 'openia'; did you mean 'openai'\?"):
        Pools.load(SHIPPED).get("openia")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PoolsError, match="cannot be read: No such file"):
        Pools.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(PoolsError, match="cannot be read: it is not UTF-8"):
        Pools.load(tmp_path / "latin.toml")
    (tmp_path / "bad.toml").write_text("[pools.p]\nprovider = 3")
    with pytest.raises(PoolsError, match=r"bad\.toml: pool 'p': provider must be"):
        Pools.load(tmp_path / "bad.toml")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(PoolsError, match="is no TOML"):
        Pools.load(tmp_path / "deep.toml")


@given(st.text(max_size=120))
def test_pool_names_are_those_that_jobs_may_use(name):
    adapter = TypeAdapter(PoolName)
    try:
        adapter.validate_python(name)
        usable = name != ""
    except ValidationError:
        usable = False
    quoted = "".join(f"\\U{ord(char):08x}" for char in name)
    try:
        pools = Pools.parse(f'[pools."{quoted}"]\nprovider = "local"')
    except PoolsError:
        assert not usable
    else:
        assert usable
        assert pools.get(name).name == name


def test_a_byte_order_mark_before_the_pools_is_accepted(tmp_path):
    (tmp_path / "pools.toml").write_bytes(b'\xef\xbb\xbf[pools.p]\nprovider = "openai"\nmodel = "m"\n')
    assert list(Pools.load(tmp_path / "pools.toml").pools) == ["p"]


def test_budgets_of_projects_and_pools():
    text = (
        '[pools.p]\nprovider = "local"\nbudget = { day = 1.5, month = 20 }\n'
        '[projects.red]\nbudget = { total = "100", currency = "EUR" }\n[projects."*"]\nbudget = { day = 3 }\n'
    )
    pools = Pools.parse(text)
    assert list(pools.budgets("red", "p")) == [
        ("project", "red", {"total": "100", "currency": "EUR"}),
        ("pool", "p", {"day": "1.5", "month": "20", "currency": "USD"}),
    ]
    assert [what for what, *_ in pools.budgets("blue", "q")] == ["project"]
    assert Pools.parse(pools.to_toml()) == pools


@pytest.mark.parametrize(
    "table",
    ["{ }", "{ week = 3 }", "{ day = 0 }", "{ day = -1 }", "{ day = true }", '{ day = "x" }', "{ day = 1000001 }",
     '{ day = 1, currency = "usd" }', '{ currency = "USD" }', "{ day = 1e-13 }", "3", "{ day = nan }"],
)  # fmt: skip
def test_a_wrong_budget_is_refused(table):
    for text in (
        f'[pools.p]\nprovider = "local"\nbudget = {table}',
        f"[pools.p]\nprovider = 'local'\n[projects.x]\nbudget = {table}",
    ):
        with pytest.raises(PoolsError, match="budget must be a table with day, month or total"):
            Pools.parse(text)


def test_a_project_has_a_budget_and_nothing_else():
    with pytest.raises(PoolsError, match="project 'x': unknown key 'limit'"):
        Pools.parse('[pools.p]\nprovider = "local"\n[projects.x]\nlimit = 3')
    with pytest.raises(PoolsError, match="projects must be tables"):
        Pools.parse('projects = 3\n[pools.p]\nprovider = "local"')
    with pytest.raises(PoolsError, match="project 'x' must be a table"):
        Pools.parse('[pools.p]\nprovider = "local"\n[projects]\nx = 3')


def test_models_with_limits_of_their_own_are_pools_of_one_account():
    pools = one(
        'provider = "openai"\nmodel = "big"\nlimit = 40\nlabels = { region = "eu" }\nbudget = { day = 5 }\n'
        'base_url = "http://llm.example/v1"\nlimits_by_model = ["big", "meta/small"]\n'
        "price = { big = { input = 2, output = 8 }, other = { input = 1, output = 1 } }"
    )
    assert list(pools.pools) == ["p", "p:big", "p:meta-small"]
    account, big, small = pools.pools.values()
    assert pools.limiting("", None) is pools.limiting("p", "big") is pools.limiting("p:big", "big") is big
    assert pools.limiting("p", "meta/small") is small
    assert pools.limiting("p", "other") is account
    assert [spec.account_name for spec in pools.pools.values()] == ["p", "p", "p"]
    assert [(spec.model, spec.one_model) for spec in (big, small)] == [("big", True), ("meta/small", True)]
    for spec in (big, small):
        same = {"name", "model", "account", "limits_by_model", "price"}
        assert spec.model_dump(exclude=same) == account.model_dump(exclude=same)
    assert big.price_table("big") == account.price_table("big") is not None
    assert small.price_table("meta/small") is account.price_table("meta/small") is None
    budgets = [list(pools.budgets("red", name)) for name in pools.pools]
    assert budgets == [[("pool", "p", {"day": "5", "currency": "USD"})]] * 3
    assert len(pools.findings()) == 1
    assert pools.with_models(["p"]) == set(pools.pools)
    assert pools.with_models(["p:big", "q"]) == {"p:big", "q"}


def test_a_price_without_a_model_is_of_the_pools_own_alone():
    pools = one('provider = "simulated"\nmodel = "a"\nlimits_by_model = ["a", "b"]\nprice = { input = 1, output = 2 }')
    assert pools.get("p:a").price_table("a") == pools.get("p").price_table("a") is not None
    assert pools.get("p:b").price_table("b") is None
