"""Rate-limit headers of providers and gateways, read into one form.

Every dialect states the same few facts: how much is allowed, how much is left, when that changes, and over which time
it counts. The meaning of names is in tables (`words`), that of values in `values`; fields that carry lists and
parameters are read in `structured`, `Retry-After` in `retry`. Nothing here knows a provider by its name: a header that
follows the grammar is read, whoever sends it. One that cannot be read is ignored: a provider's typing error must not
stop the traffic.
"""

from dicast.workers.policy.headers.read import is_about_limits, read_limits
from dicast.workers.policy.headers.reading import NO_READINGS, BudgetUnit, Reading, Readings

__all__ = [
    "NO_READINGS",
    "BudgetUnit",
    "Reading",
    "Readings",
    "is_about_limits",
    "read_limits",
]
