"""The pools file: which providers exist, how to reach them, and each pool's first limits.

It is the operator's file. A job names pools and never an address or a key; the file names a key by its environment
variable, which is read when the pool is first used. Every message names the pool, the field and the value, never a
secret.
"""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dicast.config.settings import label
from dicast.errors import DicastError, alternatives, meant

Provider = Literal["openai", "anthropic", "local", "simulated"]
Dialect = Literal["openai", "anthropic"]
PROVIDERS: tuple[str, ...] = get_args(Provider)

_DEFAULT_MODELS = {"local": "SmolLM2-135M-Instruct", "simulated": "simulated-judge"}
_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_HOSTS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}

_POOL_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")  # dicast.app.domain.text.PoolName, without the empty name
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]")
_TOP_KEYS = ("default", "pools", "projects")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)

# What people paste into these may be a secret.
_HIDDEN = {"api_key_env", "base_url", "headers", "query"}


class PoolsError(DicastError, ValueError):
    """The pools file has a mistake: a wrong key, type or bound."""

    problem = "wrong-pools-file"


class UnknownPool(DicastError, LookupError):
    """A job or a command names a pool that the pools file does not have."""

    problem = "unknown-pool"


def _only(good: object) -> None:
    if not good:
        raise ValueError("what it must be, its type's description says")


def _text(value: str) -> str:
    _only(1 <= len(value) <= 200 and value.isprintable() and value == value.strip())
    return value


def _url(value: str) -> str:
    """Validate an address: nothing that could carry a secret into a log or change where a path leads."""
    _only(value.isascii() and value.isprintable() and not re.search(r"[\s\\]", value))
    parts = urlsplit(value)
    _only(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    _only(not (parts.username or parts.password or parts.query or parts.fragment or "@" in parts.netloc))
    return value


def _texts(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        _only(_HEADER_NAME.fullmatch(name) and text.isprintable() and text.isascii())
    return value


JUDGES_OWN = ("temperature", "max_tokens", "effort", "seed", "service_tier")
"""The parameters of calls that a judge has as fields of its own."""
RENAMED = ("temperature", "effort", "seed", "service_tier")
"""Those of them whose names at the provider a pool may tell."""
_EFFORT_FIELDS = {"openai": "reasoning_effort", "anthropic": "output_config.effort"}
_RESPONSES_FIELDS = {"effort": "reasoning.effort", "seed": ""}

# What each call has anyway: another value would change what is asked, how it is paid or what can be read of the answer.
_OF_EACH_CALL = (
    *JUDGES_OWN, "model", "messages", "system", "input", "instructions", "max_completion_tokens", "max_output_tokens",
    "response_format", "output_config", "text", "store", "include", "tools", "tool_choice", "stream", "n",
    "prompt_cache_key", "logprobs", "top_logprobs",
)  # fmt: skip


def _names(value: list[str]) -> list[str]:
    _only(len(value) <= 50 and all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) for name in value))
    _only(set(value).isdisjoint(_OF_EACH_CALL))
    return value


def _param_names(value: dict[str, str]) -> dict[str, str]:
    for text in value.values():
        _only(re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,3})?", text))
        _only(text in RENAMED or text not in _OF_EACH_CALL)
    return value


MODELS_MOST = 50


def _models(value: list[str]) -> list[str]:
    _only(len(value) <= MODELS_MOST and len(set(value)) == len(value))
    return [_text(model) for model in value]


TOP_LOGPROBS_MOST = 20


def _logprobs(value: Any) -> int:
    """Return how many alternatives a pool tells of each token; 0: it tells no log probabilities."""
    most = {True: TOP_LOGPROBS_MOST, False: 0}[value] if isinstance(value, bool) else value
    _only(type(most) is int and 0 <= most <= TOP_LOGPROBS_MOST)
    return most


def _body(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        _only(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) and name not in _OF_EACH_CALL)
    try:
        _only(len(json.dumps(value, allow_nan=False)) <= 4000 and _parse(_toml(value)) == value)
    except TypeError:
        raise ValueError("a date") from None
    return value


def _parse(value: str) -> Any:
    return tomllib.loads(f"value = {value}")["value"]


def _labels(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        label(f"{name}={text}")
    return value


def _project_max(value: Any) -> dict[str, Any]:
    table = value if isinstance(value, dict) else {"*": value}
    for name, most in table.items():
        _only(name and (0 < most < 1 if type(most) is float else type(most) is int and 1 <= most <= 100_000))
    return table


PRICED = ("input", "output", "cached_input", "cache_write")
PRICE_KEYS = (*PRICED, "batch", "flex", "priority", "currency", "date")


def _price(value: Any) -> dict[str, dict[str, Any]]:
    """Return tables by model; a single one is of the pool's own model, whose name is left out."""
    _only(isinstance(value, dict) and value)
    tables = value if all(isinstance(table, dict) for table in value.values()) else {"": value}
    for table in tables.values():
        _only(table.keys() <= set(PRICE_KEYS) and {"input", "output"} <= table.keys())
        for key, of in table.items():
            if key in ("currency", "date"):
                _only(re.fullmatch(r"[A-Z]{3}" if key == "currency" else r"\d{4}-\d\d-\d\d", str(of)))
            else:
                _only(type(of) in (int, float) and 0 <= of <= 10**6 and _has_decimals(of, 6))
    return {model: {**table, **_date_text(table)} for model, table in tables.items()}


PERIODS = ("day", "month", "total")
BUDGET_MOST = 1_000_000


def _budget(value: Any) -> dict[str, str]:
    """Return amounts of money by period as texts, and their currency."""
    _only(isinstance(value, dict) and value.keys() <= {*PERIODS, "currency"} and value.keys() & set(PERIODS))
    currency = value.get("currency", "USD")
    _only(isinstance(currency, str) and re.fullmatch(r"[A-Z]{3}", currency))
    return {period: _amount(value[period]) for period in PERIODS if period in value} | {"currency": currency}


def _amount(value: Any) -> str:
    _only(type(value) in (int, float, str))
    try:
        amount = Decimal(repr(value) if type(value) is float else str(value))
    except InvalidOperation:
        raise ValueError("no number") from None
    _only(amount.is_finite() and 0 < amount <= BUDGET_MOST and amount.normalize().as_tuple().exponent >= -12)  # type: ignore[operator]
    return f"{amount:f}"


def _date_text(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the date as a text: TOML has dates of its own."""
    return {"date": str(table["date"])} if "date" in table else {}


def _has_decimals(number: float, most: int) -> bool:
    return Decimal(repr(number)).normalize().as_tuple().exponent >= -most  # type: ignore[operator]


# What a value must be stands in its type's description; it completes "limit must be ..., got ...".
Text = Annotated[str, AfterValidator(_text), Field(description="a printable text of 1 to 200 characters")]
MaybeText = Annotated[str | None, AfterValidator(_text), Field(description="a printable text of 1 to 200 characters")]
Url = Annotated[
    str | None,
    AfterValidator(_url),
    Field(description="an address like https://host/v1, without user, query or fragment"),
]
Variable = Annotated[
    str | None,
    Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$", description="the name of an environment variable ('' for none)"),
]
Flag = Annotated[bool, Field(description="true or false")]
Calls = Annotated[int | None, Field(ge=1, le=100_000, description="a whole number from 1 to 100000")]
Requests = Annotated[int | None, Field(ge=1, le=10**9, description=f"a whole number from 1 to {10**9}")]
Tokens = Annotated[int | None, Field(ge=1, le=10**12, description=f"a whole number from 1 to {10**12}")]
Seconds = Annotated[
    float | None, Field(ge=0.01, le=3600, allow_inf_nan=False, description="a number of seconds from 0.01 to 3600")
]
Texts = Annotated[
    dict[str, str], AfterValidator(_texts), Field(description="a table of texts without control characters")
]
Names = Annotated[
    list[str],
    AfterValidator(_names),
    Field(description=f"a list of up to 50 names of parameters, without {', '.join(_OF_EACH_CALL)}"),
]
Models = Annotated[
    list[str], AfterValidator(_models), Field(description=f"a list of up to {MODELS_MOST} different names of models")
]
ParamNames = Annotated[
    dict[str, str],
    AfterValidator(_param_names),
    Field(
        description='a table of parameters and their names at the provider, such as { seed = "random_seed" }; "" for '
        "one that it does not have"
    ),
]
Logprobs = Annotated[
    int,
    BeforeValidator(_logprobs),
    Field(description=f"true, false, or the number of alternatives that it tells of a token, 0 to {TOP_LOGPROBS_MOST}"),
]
Answers = Annotated[int, Field(ge=1, le=128, description="a whole number from 1 to 128")]
Fields = Annotated[
    dict[str, Any],
    AfterValidator(_body),
    Field(
        description="a table such as { provider = { require_parameters = true } }, of at most 4000 characters, without "
        f"{', '.join(_OF_EACH_CALL)}, without dates, and without tables in lists"
    ),
]
Labels = Annotated[
    dict[str, str], AfterValidator(_labels), Field(description='a table of labels, such as { region = "eu" }')
]
ByProject = Annotated[
    dict[str, int | float],
    BeforeValidator(_project_max),
    Field(
        description="a share below 1 or a whole number of calls, or a table of these by project ('*' for the others)"
    ),
]
Prices = Annotated[
    dict[str, dict[str, Any]],
    BeforeValidator(_price),
    Field(
        description='a table such as { input = 0.4, output = 1.6, currency = "USD" }, for a million tokens with up to '
        "6 decimals, or a table of these by model"
    ),
]
BudgetTable = Annotated[
    dict[str, str],
    BeforeValidator(_budget),
    Field(
        description="a table with day, month or total, each more than 0 and at most 1000000, and currency, such as "
        '{ day = 10, month = 200, currency = "USD" }'
    ),
]


class ProjectSpec(BaseModel):
    """One `[projects.<name>]` table; the name `*` stands for each project that has no table of its own."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    budget: BudgetTable


class PoolSpec(BaseModel):
    """One `[pools.<name>]` table with its defaults. `limit` to `tpm` are initial values: live state is not stored here.

    `base_url` None is the provider's own address or, for `local` and `simulated`, the one found when it is started.
    `cut_frees`: the provider is known to end a call when its connection is closed, so a call that was cut is no longer
    open there. `api_key_env` None: no key is sent. `timeout_s` bounds each call as a whole; None: LLM_CALL_TIMEOUT
    does. `latency_target_s` is what the median latency of calls is kept below. `labels` are those that a node must have
    to take the pool's units.

    Calls of the models in `limits_by_model` go by limits of their own: each of these models has a pool that is not in
    the file, derived from this one, whose `account` this is. Key, address, prices, budgets and rights are the
    account's. `account` is "" for the pools of the file.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    provider: Provider
    dialect: Dialect = "openai"
    api: Literal["chat", "responses"] = "chat"
    model: Text = ""
    base_url: Url = None
    api_key_env: Variable = None
    structured_output: Flag = True
    structured_channel: Literal["json_schema", "tool"] = "json_schema"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_tokens"
    schema_lengths: Flag = True
    nonce_in_schema: Flag = False
    cut_frees: Flag = False
    images: Flag = False
    limit: Calls = None
    ceiling: Calls = None
    adaptive: Flag = True
    rpm: Requests = None
    tpm: Tokens = None
    latency_target_s: Seconds = None
    limits_by_model: Models = []
    project_max: ByProject = {}
    api_version: MaybeText = None
    headers: Texts = {}
    query: Texts = {}
    timeout_s: Seconds = None
    trust_env: Flag = False
    calls: Literal["direct", "sdk"] = "direct"
    labels: Labels = {}
    effort: MaybeText = None
    service_tier: MaybeText = None
    params: Names = []
    param_names: ParamNames = {}
    body: Fields = {}
    prompt_caching: Flag = False
    logprobs: Logprobs = 0
    answers_per_call: Answers = 1
    price: Prices = {}
    road: Literal["online", "batch", "flex", "auto"] = "online"
    budget: Annotated[BudgetTable, Field(validate_default=False)] = {}
    account: str = ""

    @property
    def account_name(self) -> str:
        """The name of the pool of the file: this one's, or that of its account."""
        return self.account or self.name

    def price_table(self, model: str) -> Mapping[str, Any] | None:
        """Return what the file says of a model's price, None if it says nothing."""
        return self.price.get(model) or (self.price.get("") if model == self.model else None)

    def field_of(self, parameter: str) -> str:
        """Return the name of a parameter in calls of this pool, a dot leading into an object; "" if the file says that
        the provider has no such parameter."""
        default = _EFFORT_FIELDS[self.dialect] if parameter == "effort" else parameter
        if self.api == "responses":
            default = _RESPONSES_FIELDS.get(parameter, parameter)
        return self.param_names.get(parameter, default)

    @property
    def has_batches(self) -> bool:
        """Whether Dicast knows the provider's batch API: that of OpenAI's chat completions or of Anthropic's messages,
        which compatible servers rarely have."""
        genuine = self.provider in _HOSTS and _is_own_host(self.provider, self.base_url)
        return self.api == "chat" and (self.provider == "simulated" or (genuine and self.api_version is None))

    @property
    def has_flex(self) -> bool:
        """Whether the provider has OpenAI's flex service."""
        is_openai = self.provider == "openai" and _is_own_host("openai", self.base_url) and self.api_version is None
        return self.dialect == "openai" and (self.provider == "simulated" or is_openai)

    @property
    def one_model(self) -> bool:
        """Whether the pool is for its own model alone."""
        return self.provider == "local" or bool(self.account)

    def pool_of_model(self, model: str) -> str:
        """Return the name of the pool by whose limits calls of a model in `limits_by_model` go."""
        return f"{self.name}:{_NOT_IN_NAMES.sub('-', model)}"

    def cut_to(self, most: int) -> str | None:
        """Return a message if the limit of all calls together is below this pool's own; None otherwise."""
        above = [(key, value) for key in ("limit", "ceiling") if (value := getattr(self, key)) and value > most]
        if not above:
            return None
        settings = " and ".join(f"{key} = {value}" for key, value in above)
        return f"{settings} in the pools file, but MAX_CONCURRENT_LLM_CALLS is {most}: {most} binds"


@dataclass(frozen=True, slots=True)
class PoolWarning:
    """A setting that works but is unwise; `dicast doctor` shows it."""

    pool: str
    message: str


@dataclass(frozen=True, slots=True)
class Pools:
    """All pools by name, and the name that an empty pool name stands for: those of the file, and those of single
    models, which have limits of their own. `flat`: the file has the older format, with one pool."""

    default: str
    pools: Mapping[str, PoolSpec]
    flat: bool = field(default=False, compare=False)
    projects: Mapping[str, ProjectSpec] = field(default_factory=dict)

    def get(self, name: str) -> PoolSpec:
        """Return the pool called `name`, '' being the default one. Raises `UnknownPool`."""
        try:
            return self.pools[name or self.default]
        except KeyError:
            raise UnknownPool(f"there is no pool {name!r}{alternatives(name, self.pools)}") from None

    def limiting(self, name: str, model: str | None) -> PoolSpec:
        """Return the pool by whose limits calls of a model go (None: the pool's own model). Raises `UnknownPool`."""
        spec = self.get(name)
        model = spec.model if model is None else model
        return self.pools[spec.pool_of_model(model)] if model in spec.limits_by_model else spec

    def with_models(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names, and those of the pools of single models whose accounts are among them."""
        given = frozenset(names)
        return given | {spec.name for spec in self.pools.values() if spec.account in given}

    def budgets(self, project: str, pool: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Yield the budgets that a project's calls to a pool must keep: whose they are, 'project' or 'pool', its name,
        and amounts by period with their currency. A model's pool has its account's."""
        of_project = self.projects.get(project) or self.projects.get("*")
        if of_project is not None:
            yield "project", project, of_project.budget
        if (spec := self.pools.get(pool)) is not None and spec.budget:
            yield "pool", spec.account_name, spec.budget

    def findings(self) -> list[PoolWarning]:
        """Return what an operator should know although nothing is wrong."""
        return [
            PoolWarning(
                spec.name, f"base_url {spec.base_url} is not encrypted: keys and texts cross the network in clear"
            )
            for spec in self.pools.values()
            if spec.base_url is not None and not spec.account and _in_clear(spec.base_url)
        ]

    @classmethod
    def load(cls, path: str | Path) -> Pools:
        """Read a pools file. Raises `PoolsError` with the file's name on the first mistake."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise PoolsError(f"pools file {path} cannot be read: {reason}") from None
        try:
            return cls.parse(text)
        except PoolsError as error:
            raise PoolsError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Pools:
        """Parse a pools file. A flat document, without the `pools` table, is one pool called 'default'."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PoolsError(f"is no TOML: {error}") from None
        except RecursionError:
            raise PoolsError("is no TOML: nested too deeply") from None
        flat = "pools" not in document and "provider" in document
        if flat:
            document = {"default": "default", "pools": {"default": document}}
        for key in document:
            if key not in _TOP_KEYS:
                raise PoolsError(f"unknown key {_excerpt(key)}{alternatives(key, _TOP_KEYS)}")
        tables = document.get("pools")
        if not isinstance(tables, dict) or not tables:
            raise PoolsError("needs at least one table [pools.<name>]")
        pools = {name: _pool(name, table) for name, table in tables.items()}
        default = document.get("default")
        if default is None and len(pools) == 1:
            default = next(iter(pools))
        if not isinstance(default, str) or default not in pools:
            near = meant(default, pools) if isinstance(default, str) else ""
            raise PoolsError(f"default must name one of the pools ({', '.join(pools)}), got {_excerpt(default)}{near}")
        projects = document.get("projects", {})
        if not isinstance(projects, dict):
            raise PoolsError(f"projects must be tables [projects.<name>], got {_excerpt(projects)}")
        for of_model in [_of_model(spec, model) for spec in pools.values() for model in spec.limits_by_model]:
            if of_model.name in pools:
                raise PoolsError(
                    f"pool {of_model.account!r}: limits_by_model gives {of_model.model!r} a pool {of_model.name!r}, "
                    "and there is another one of that name"
                )
            pools[of_model.name] = of_model
        return cls(default, pools, flat, {name: _project(name, table) for name, table in projects.items()})

    def to_toml(self) -> str:
        """Return the pools as a file, without fields that are implied by others: `parse` gives an equal value."""
        tables = [
            "\n".join(
                [
                    f"[pools.{_key(spec.name)}]",
                    *(f"{key} = {_toml(value)}" for key, value in _explicit_fields(spec).items()),
                ]
            )
            for spec in self.pools.values()
            if not spec.account
        ]
        tables += [
            f"[projects.{_key(project.name)}]\nbudget = {_toml(project.budget)}" for project in self.projects.values()
        ]
        return "\n\n".join([f"default = {_toml(self.default)}", *tables]) + "\n"


def _explicit_fields(spec: PoolSpec) -> dict[str, Any]:
    """Return the fields that a pool's table must have: its identity, and where it differs from what that implies."""
    names = ("provider", "dialect", "model", "base_url", "api_version")
    fields = {name: value for name in names if (value := getattr(spec, name)) is not None}
    implied = dict(_pool(spec.name, fields))
    return fields | {key: "" if value is None else value for key, value in spec if value != implied[key]}


def _toml(value: Any) -> str:
    """Format a value. Texts here are printable, and JSON and TOML write those alike."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _pool(name: str, table: Any) -> PoolSpec:
    if not _POOL_NAME.fullmatch(name):
        raise PoolsError(
            f"pool name {_excerpt(name)} may hold only letters, digits, '.', '_', ':' and '-', at most 100"
        )
    if not isinstance(table, dict):
        raise PoolsError(f"pool {name!r} must be a table [pools.{name}], got {_excerpt(table)}")
    try:
        _check_keys(table)
        spec = PoolSpec.model_validate({"name": name, **table})
        return spec.model_copy(update=_implied(spec))
    except ValidationError as error:
        raise PoolsError(f"pool {name!r}: {_complaint(str(error.errors()[0]['loc'][0]), table)}") from None
    except PoolsError as error:
        raise PoolsError(f"pool {name!r}: {error}") from None


def _of_model(spec: PoolSpec, model: str) -> PoolSpec:
    """Return the pool of one of a pool's models, which has limits of its own."""
    name = spec.pool_of_model(model)
    if not _POOL_NAME.fullmatch(name):
        why = f"{_excerpt(name)} would be a pool's name, with more than 100 characters"
        raise PoolsError(f"pool {spec.name!r}: limits_by_model: {why}")
    table = spec.price_table(model)
    price = {} if table is None else {"": dict(table)}
    own = {"name": name, "model": model, "account": spec.name, "limits_by_model": [], "price": price}
    return spec.model_copy(update=own)


def _project(name: str, table: Any) -> ProjectSpec:
    if not isinstance(table, dict):
        raise PoolsError(f"project {name!r} must be a table [projects.{name}], got {_excerpt(table)}")
    for key in table:
        if key != "budget":
            raise PoolsError(f"project {name!r}: unknown key {_excerpt(key)}{alternatives(key, ['budget'])}")
    try:
        return ProjectSpec.model_validate({"name": name, **table})
    except ValidationError:
        must = ProjectSpec.model_fields["budget"].description
        raise PoolsError(f"project {name!r}: budget must be {must}, got {_excerpt(table.get('budget'))}") from None


def _check_keys(table: Mapping[str, Any]) -> None:
    names = [name for name in PoolSpec.model_fields if name not in ("name", "account")]
    for key in table:
        if key == "api_key":
            raise PoolsError("no keys in this file; api_key_env names the variable that holds it")
        if key not in names:
            raise PoolsError(f"unknown key {_excerpt(key)}{alternatives(key, names)}")


def _complaint(key: str, table: Mapping[str, Any]) -> str:
    if key not in table:
        return f"{key} is missing; it is one of {', '.join(PROVIDERS)}"
    spec, value = PoolSpec.model_fields[key], table[key]
    if spec.description is not None:
        return f"{key} must be {spec.description}, got {'a hidden value' if key in _HIDDEN else _excerpt(value)}"
    choices = get_args(spec.annotation)
    return f"{key} must be one of {', '.join(choices)}, got {_excerpt(value)}{meant(value, choices)}"


def _implied(spec: PoolSpec) -> dict[str, Any]:
    """Return the fields implied by the table. Raises `PoolsError` for a contradiction."""
    fields, provider = spec.model_fields_set, spec.provider
    dialect = spec.dialect if "dialect" in fields or provider not in get_args(Dialect) else provider
    if provider in get_args(Dialect) and dialect != provider:
        raise PoolsError(f"dialect must be {provider!r} with provider {provider!r}, got {dialect!r}")
    if not spec.model and provider not in _DEFAULT_MODELS:
        raise PoolsError("model is missing")
    if spec.limit is not None and spec.ceiling is not None and spec.limit > spec.ceiling:
        raise PoolsError(f"limit must be <= ceiling ({spec.ceiling}), got {spec.limit}")
    if spec.road in ("batch", "auto") and not spec.has_batches:
        raise PoolsError(f"road must be 'online': its provider has no batch API, got {spec.road!r}")
    if spec.road == "flex" and not spec.model_copy(update={"dialect": dialect}).has_flex:
        raise PoolsError("road must be 'online': its provider has no flex service, got 'flex'")
    if spec.service_tier == "flex":
        raise PoolsError("service_tier must not be 'flex'; road = \"flex\" asks for that service")
    _check_param_names(spec.model_copy(update={"dialect": dialect}))
    if spec.limit is None and not spec.adaptive:
        raise PoolsError("adaptive = false needs a limit to hold")
    if spec.limits_by_model:
        if provider == "local":
            raise PoolsError("limits_by_model must be left out: the provider 'local' serves one model")
        for key in ("rpm", "tpm"):
            if (most := getattr(spec, key)) is not None:
                raise PoolsError(f"{key} must be left out with limits_by_model: each model would keep it, got {most}")
    if spec.latency_target_s is not None:
        if not spec.adaptive:
            raise PoolsError("latency_target_s needs a limit that moves, but adaptive is false")
        if spec.timeout_s is not None and spec.latency_target_s >= spec.timeout_s:
            bound = f"< timeout_s ({spec.timeout_s:g})"
            raise PoolsError(f"latency_target_s must be {bound}, got {spec.latency_target_s:g}")
    # A key goes by default only to the provider that issued it: another base_url has to ask for one by name.
    own_key = None if spec.base_url else _KEY_VARIABLES.get(provider)
    implied = {
        "dialect": dialect,
        "model": _DEFAULT_MODELS.get(provider),
        "nonce_in_schema": provider == "local",
        "cut_frees": provider in ("local", "simulated"),
        "images": provider == "simulated",
        "api_key_env": own_key,
        **_dialect_options(spec, dialect),
    }
    defaults = {key: value for key, value in implied.items() if key not in fields}
    return defaults | ({"api_key_env": None} if spec.api_key_env == "" else {})


def _check_param_names(spec: PoolSpec) -> None:
    """Raise `PoolsError` for a name that no call has, for a parameter that the pool both sets and says to lack, or for
    one that would take the place of a field of `body`."""
    known = [*RENAMED, *spec.params]
    for name in known:
        place = spec.field_of(name).partition(".")[0]
        if place in spec.body:
            raise PoolsError(f"body: {place} is where {name} stands in calls, got {_excerpt(spec.body[place])}")
    for name in spec.param_names:
        if name not in known:
            raise PoolsError(f"param_names: unknown parameter {_excerpt(name)}{alternatives(name, known)}")
    for name in ("effort", "service_tier"):
        value = getattr(spec, name)
        if value is not None and spec.param_names.get(name) == "":
            raise PoolsError(f"{name} must be left out where param_names says that there is none, got {value!r}")


def _is_own_host(provider: str, url: str | None) -> bool:
    return url is None or urlsplit(url).hostname == _HOSTS[provider]


def _dialect_options(spec: PoolSpec, dialect: str) -> dict[str, Any]:
    """Return the options that depend on who really answers: the provider itself or a compatible server."""
    provider, url, fields = spec.provider, spec.base_url, spec.model_fields_set
    genuine = provider in _HOSTS and _is_own_host(provider, url)
    if dialect == "anthropic":
        for key in ("api_version", "max_tokens_field", "schema_lengths"):
            if key in fields:
                raise PoolsError(f"{key} is for dialect 'openai', this pool speaks 'anthropic'")
        if spec.logprobs:
            raise PoolsError("logprobs must be false with dialect 'anthropic': that API tells none")
        if spec.api != "chat":
            raise PoolsError(f"api is for dialect 'openai', this pool speaks 'anthropic', got {spec.api!r}")
        if spec.answers_per_call > 1:
            most = spec.answers_per_call
            raise PoolsError(f"answers_per_call must be 1 with dialect 'anthropic': that API has no n, got {most}")
        return {"structured_channel": "json_schema" if genuine else "tool", "prompt_caching": genuine}
    if spec.api == "responses":
        _check_responses(spec)
    azure = spec.api_version is not None
    if azure and (provider != "openai" or url is None):
        raise PoolsError("api_version is for Azure: it needs provider 'openai' and a base_url")
    if spec.structured_channel == "tool":
        raise PoolsError("structured_channel must be json_schema with dialect openai, got 'tool'")
    ours = genuine or azure
    max_tokens_field = "max_completion_tokens" if ours else "max_tokens"
    return {
        "max_tokens_field": max_tokens_field, "schema_lengths": not ours, "prompt_caching": genuine,
        "logprobs": 0 if provider == "local" else TOP_LOGPROBS_MOST,
    }  # fmt: skip


def _check_responses(spec: PoolSpec) -> None:
    """Raise `PoolsError` for what OpenAI's Responses API does not have."""
    if (most := spec.answers_per_call) > 1:
        raise PoolsError(f"answers_per_call must be 1 with api 'responses', which has no n, got {most}")
    if "max_tokens_field" in spec.model_fields_set:
        raise PoolsError("max_tokens_field is for api 'chat', this pool has 'responses'")
    if spec.provider == "local" or spec.api_version is not None:
        raise PoolsError("api must be 'chat' with provider 'local' and with an api_version, got 'responses'")


def _in_clear(base_url: str) -> bool:
    parts = urlsplit(base_url)
    return parts.scheme == "http" and not _loopback(parts)


def _loopback(parts: SplitResult) -> bool:
    host = (parts.hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
