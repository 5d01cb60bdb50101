"""Why a job has stopped calling a place, which is a model of a pool."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from dicast.app.domain.opinion import ErrorKind


class Stop(BaseModel):
    """The job's first `after` units at the place all ended in this error (0: no call could be made at all, or the job
    gave up waiting). `kind` is the error of the units that were not called."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    pool: str
    model: str
    kind: ErrorKind
    after: int
    status_code: int | None
    message: str

    @property
    def place(self) -> str:
        return place(self.pool, self.model)

    @property
    def reason(self) -> str:
        """One line for people: where, after how many calls, and what the error said."""
        if self.kind in (ErrorKind.POOL_DOWN, ErrorKind.DEADLINE):
            return self.message
        if self.after == 0:
            prefix = f"pool {self.pool!r}: "
            return f"pool {self.pool!r} cannot be used: {self.message.removeprefix(prefix)}"
        first = "the first call" if self.after == 1 else f"the first {self.after} calls"
        return f"{first} of {self.model} in pool {self.pool!r} ended in: {self.message}"


def place(pool: str, model: str) -> str:
    """Return the name of a place where a job makes calls; pools' names hold no '|'."""
    return f"{pool}|{model}"
