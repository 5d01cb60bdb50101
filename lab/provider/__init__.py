"""A stand-in for a provider's account: the simulated provider with real limits and faults, for tests and benches."""

from lab.provider.account import Behaviour, ConfigError, SimulatedConfig, Step
from lab.provider.server import SimulatedAccount

__all__ = ["Behaviour", "ConfigError", "SimulatedAccount", "SimulatedConfig", "Step"]
