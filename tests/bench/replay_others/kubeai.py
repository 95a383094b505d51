"""KubeAI: the ten-minute mean of active requests over a target for each replica.

Follows substratusai/kubeai internal/modelautoscaler/autoscaler.go (2025-10-15): every 10 s, 100
requests by default, down after as many lower asks in a row as ``scaleDownDelaySeconds``, 30, has
steps.
"""

from replay_others.in_flight import InFlight, in_flight


def kubeai(target: float) -> InFlight:
    """Return the rule, with so many active requests for each replica."""
    return in_flight(target, window_s=600.0, up_s=0.0, down_s=30.0)
