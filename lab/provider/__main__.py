"""`python -m lab.provider`: run a simulated provider with limits and faults until it is told to stop."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from dicast.app.providers.simulated import add_common, run
from lab.provider.account import (
    Behaviour,
    ConfigError,
    SimulatedConfig,
    options,
    parse_changes,
    parse_fault,
    parse_step,
    parse_value,
)
from lab.provider.faults import ANSWER_FAULTS, BODY_FAULTS
from lab.provider.server import SimulatedAccount

_EPILOG = f"""\
faults      of the HTTP answer: {", ".join(BODY_FAULTS)}
            of the judge's words: {", ".join(ANSWER_FAULTS)}
steps       300:10 is cap 10 after 300 good answers; 30s:cap=10,rpm=60 is both after 30 seconds
models      --model slow:latency=5,cap=2 gives the model 'slow' limits and manners of its own

The first line of output is JSON with the base_url, once the server accepts connections. Both SDKs take it as it is.
GET /stats, GET /log and POST /control (JSON, options named as here, with '_' for '-') work while it runs.
"""


_METAVARS = {int: "N", float: "X", str: "TEXT"}


def parser() -> argparse.ArgumentParser:
    """The command line; every behaviour option is offered under its own name."""
    parse = argparse.ArgumentParser(
        prog="python -m lab.provider",
        description="A stand-in for an LLM provider: OpenAI's and Anthropic's APIs with real limits and real faults.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parse)
    parse.add_argument("--log", metavar="FILE", help="append every request to FILE, one JSON object a line")
    parse.add_argument("--fault", action="append", default=[], metavar="NAME=SHARE", help="spoil a share of answers")
    parse.add_argument("--step", action="append", default=[], metavar="WHEN:CHANGE", help="change limits later")
    parse.add_argument("--model", action="append", default=[], metavar="NAME:CHANGES", help="treat a model otherwise")
    for name, kind, default, help_text in options():
        flag = "--" + name.replace("_", "-")
        full_help = f"{help_text} (default: {'none' if default is None else str(default).lower()})"
        if kind is bool:
            parse.add_argument(flag, default=default, action=argparse.BooleanOptionalAction, help=full_help)
        else:
            parse.add_argument(flag, default=default, metavar=_METAVARS[kind], help=full_help)
    return parse


def config_of(arguments: argparse.Namespace) -> SimulatedConfig:
    """The configuration that the command line asks for; raises `ConfigError`."""
    wish: dict[str, Any] = {}
    for name, _, default, _ in options():
        value = getattr(arguments, name)
        if value != default:
            wish[name] = parse_value(name, value) if isinstance(value, str) else value
    wish["faults"] = dict(parse_fault(text) for text in arguments.fault)
    behaviour = Behaviour().changed(wish)
    models = {}
    for text in arguments.model:
        name, separator, changes = text.partition(":")
        if not name or not separator:
            raise ConfigError(f"a model looks like slow:latency=5,cap=2, got {text!r}")
        models[name] = behaviour.changed(parse_changes(changes))
    return SimulatedConfig(
        behaviour=behaviour,
        models=models,
        steps=tuple(parse_step(text) for text in arguments.step),
        seed=arguments.seed,
        api_key=arguments.api_key,
        log_file=arguments.log,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parse = parser()
    arguments = parse.parse_args(argv)
    try:
        config = config_of(arguments)
    except ConfigError as error:
        parse.error(str(error))
    run(lambda: SimulatedAccount(config, host=arguments.host, port=arguments.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
