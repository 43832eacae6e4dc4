"""Which requests speculation served worst and best, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 10  # of each end
# A request of fewer steps says more of chance than of its text.
LEAST_STEPS = 10
_OPEN = 100_000  # requests followed at once: more than any server runs


@dataclass(frozen=True)
class RequestAcceptance:
    """A request, its verify steps, and its accept length (the bonus token included)."""

    id: str
    steps: int
    accept_length: float


class RequestRanking:
    """Counts by request id, and keeps the ends of the ranking.

    A request that `_OPEN` others came after is taken for finished; should it come back (retracted
    for that long), it counts as another one.
    """

    def __init__(self) -> None:
        self.finished = 0
        self._open: dict[str, list[int]] = {}  # id: [steps, accepted], last seen last
        self._ranked = 0
        self._ends: list[RequestAcceptance] = []

    def add(self, name: str, accepted: int) -> None:
        """Count a verify step of a request."""
        counts = self._open.pop(name, None) or [0, 0]
        counts[0] += 1
        counts[1] += accepted
        self._open[name] = counts
        if len(self._open) > _OPEN:
            self._finish(next(iter(self._open)))

    def finish(self) -> None:
        """Take every request for finished."""
        for name in list(self._open):
            self._finish(name)

    @property
    def ranked(self) -> int:
        """How many finished requests had `LEAST_STEPS`."""
        return self._ranked

    @property
    def worst(self) -> list[RequestAcceptance]:
        """At most `SHOWN` of the finished, the worst first."""
        ends = self._sorted_ends()
        return ends[: min(SHOWN, (len(ends) + 1) // 2)]

    @property
    def best(self) -> list[RequestAcceptance]:
        """At most `SHOWN` of the finished, the best first; none that is among the worst."""
        return self._sorted_ends()[len(self.worst) :][::-1][:SHOWN]

    def _finish(self, name: str) -> None:
        steps, accepted = self._open.pop(name)
        self.finished += 1
        if steps < LEAST_STEPS:
            return
        self._ranked += 1
        self._ends.append(RequestAcceptance(name, steps, 1 + accepted / steps))
        if len(self._ends) > 20 * SHOWN:
            ends = self._sorted_ends()
            self._ends = ends[:SHOWN] + ends[-SHOWN:]

    def _sorted_ends(self) -> list[RequestAcceptance]:
        return sorted(self._ends, key=lambda request: (request.accept_length, request.id))
