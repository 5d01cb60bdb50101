"""A stand-in for a provider's account: a real HTTP server with real limits, for tests, benches and first steps."""

from dicast.app.providers.simulated.account import Behaviour, ConfigError, SimulatedConfig, Step
from dicast.app.providers.simulated.server import SimulatedProvider

__all__ = ["Behaviour", "ConfigError", "SimulatedConfig", "SimulatedProvider", "Step"]
