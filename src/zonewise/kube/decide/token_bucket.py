"""Token bucket: how long a request must wait under a rate limit. The time is an argument."""

from __future__ import annotations


class TokenBucket:
    """Holds up to `burst` tokens and gains `qps` a second. Taking is a reservation, so waiters are served in order."""

    def __init__(self, qps: float, burst: int, now: float) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"a rate limit needs qps > 0 and burst >= 1, not qps={qps} and burst={burst}")
        self.qps = qps
        self.burst = burst
        self._tokens = float(burst)
        self._at = now

    def take(self, now: float) -> float:
        """Takes one token and returns the seconds until it is there."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.qps)

    def give_back(self, now: float) -> None:
        """For a caller that stopped waiting."""
        self._refill(now)
        self._tokens = min(self.burst, self._tokens + 1)

    def _refill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self.qps
        self._tokens = min(self.burst, self._tokens + gained)
        self._at = max(now, self._at)
