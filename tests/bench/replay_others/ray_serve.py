"""Ray Serve: ongoing requests over a target for each replica, after delays.

Follows ray-project/ray python/ray/serve/autoscaling_policy.py and config.py, with the defaults of
``num_replicas="auto"``: 2 requests, metrics every 10 s over 30 s, 30 s before it goes up, 600 s
before it goes down, no smoothing.
"""

from replay_others.in_flight import InFlight, in_flight


def ray_serve(target: float) -> InFlight:
    """Return the rule, with so many ongoing requests for each replica."""
    return in_flight(target, window_s=30.0, up_s=30.0, down_s=600.0)
