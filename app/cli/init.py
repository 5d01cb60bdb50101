"""`dicast init`: a job file and a pools file to begin with."""

from __future__ import annotations

from pathlib import Path

from dicast import config
from dicast.app.cli.console import Refused, Terminal
from dicast.config.settings import DEFAULTS

STARTER = Path(config.__file__).parent


def make_files(terminal: Terminal, folder: str) -> None:
    """Write `job.yaml` and `config/pools.toml` into a folder. Existing files stay as they are.

    Raises `Refused` if both exist, OSError.
    """
    root = Path(folder)
    templates = {"job.yaml": STARTER / "jobs" / "starter.yaml", DEFAULTS.pools_file: STARTER / "pools.toml"}
    new = {name: source for name, source in templates.items() if not (root / name).exists()}
    if not new:
        raise Refused(f"{' and '.join(templates)} are in {root.resolve()} already; nothing was changed")
    for name, source in new.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        terminal.say(f"Wrote {target}")
    for name in templates.keys() - new.keys():
        terminal.say(f"Left {root / name} as it is")
    job = root / "job.yaml"
    terminal.say(f"Next:\n  dicast validate {job}\n  dicast run --local {job}")
