"""Constants of the default engine, each with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from dicast.workers.policy.breaker import BreakerConfig
from dicast.workers.policy.diagnosis import DiagnosisConfig


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """`*_rtts` are in smoothed round trips (answers' latency), `*_s` in seconds.

    start, start_part      first limit, and as a part of the ceiling if that is more: few ceilings are guessed five
                           times too high, and each step up from less costs a feedback delay ...
    start_most             ... but all of it is sent before the first refusal comes back
    start_part_large       the least first limit as a part of the ceiling: from 20 to 2,000 takes a dozen steps
    start_s                the first calls are spread over so long
    slow_start_factor      growth of the limit per feedback delay; the last step overshoots by as much
    starting_rtts          so long after slow start its bursts still blur the evidence
    hold_min_rtts          wait between probes beyond the known good level, after success ...
    hold_max_rtts          ... and after many failures (`_late`: where refusals are heard late, so that steps take long)
    calls_per_probe        a probe costs a refusal; small limits wait until so many calls outweigh it (`_settled`: where
                           nothing but one level was refused for long)
    overloaded_hold_rtts   longest wait after a 529: overload passes, and capacity comes back at once
    feedback_first_s       time in which a refusal comes back, before any has
    feedback_min_s, max_s  its bounds when measured: `feedback_factor` times the slowest of the last eight
    quick_factor           times the quickest answers is longer than a refusal takes: a bound of it, and of its minimum
    feedback_least_s       whatever is measured: below, the machines' own delays count
    rtt_first_s            an answer's latency, before any has come
    rtt_weight             weight of one answer in the average
    pace_gain              grants a second relative to the limit's turnover: refills fast, without a burst
    burst_part             part of the limit that may be filled at once after a pause (`_starting`: in slow start, and
                           where a rate was found)
    gentle_factor          a step that may have been refused for haste is spread over so many feedback delays
    rate_room              limit relative to what a learned rate needs, so that latency may wander
    quantum_gain           part of an advertised rate to use when the provider counts it per second
    memory_rtts            how long a refused level is remembered
    trust_rtts             how long a finding about single refusals that were noise is trusted
    log_rtts, log_least_s  span of the evidence
    trip_failures          consecutive failures that open the breaker
    grace_s                grants are held so much longer than a diagnosis takes, for its decision comes a little late
    stop_after             refusals since the last decision after which the enforcer stops by itself
    latency_tolerance      times the least latency seen that means queueing
    latency_target_s       the operator's target, below which the median latency is kept; None: there is none
    """

    start: float = 10.0
    start_part: float = 0.2
    start_most: float = 20.0
    start_part_large: float = 0.04
    start_s: float = 0.3
    slow_start_factor: float = 1.5
    starting_rtts: float = 4.0
    hold_min_rtts: float = 1.0
    hold_max_rtts: float = 7.0
    hold_max_late_rtts: float = 5.0
    calls_per_probe: float = 110.0
    calls_per_probe_settled: float = 250.0
    overloaded_hold_rtts: float = 3.0
    feedback_first_s: float = 0.8
    feedback_min_s: float = 0.5
    feedback_max_s: float = 15.0
    feedback_factor: float = 1.3
    feedback_least_s: float = 0.1
    quick_factor: float = 0.6
    rtt_first_s: float = 5.0
    rtt_weight: float = 0.05
    pace_gain: float = 2.0
    burst_part: float = 0.5
    burst_part_starting: float = 0.025
    gentle_factor: float = 4.0
    rate_room: float = 1.5
    quantum_gain: float = 0.985
    memory_rtts: float = 20.0
    trust_rtts: float = 30.0
    log_rtts: float = 8.0
    log_least_s: float = 10.0
    trip_failures: int = 5
    grace_s: float = 0.3
    stop_after: int = 6
    latency_tolerance: float = 2.0
    latency_target_s: float | None = None
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)
