"""Failed decodes of each producer's KV in a row, by consumer (failures.md section 9, "The pair"). Pure.

| producer | event | next |
| --- | --- | --- |
| any | a decode of its KV failed | failing n + 1 |
| failing | `eject_after` times, with two consumers or more that are not out or held | told, its row is over |
| failing | a decode of its KV reached its clean end, a probe of it was good | its row is over |
| failing | a failure was the request's, the pair's, or of a consumer that begins anew | failing less |
| failing | more than `eject_after` charges of one consumer, each to a row of its own | without the oldest |
| failing | it begins anew itself | its row is over |

What failed on a consumer that is held is neither evidence nor forgotten: its probe decides, and where that
is inconclusive it is evidence again.
"""

from __future__ import annotations

from narwhal.policy.edge_map import PARTNERS, Charge, IsOut, Row


class KvRows:
    """A producer whose KV does well has no row, so good news cost a look-up."""

    __slots__ = ("_aside", "_eject_after", "failing")

    def __init__(self, *, eject_after: int, aside: IsOut) -> None:
        """`aside`: who is out or held."""
        self._aside = aside
        self._eject_after = eject_after
        self.failing: dict[str, Row] = {}
        """For reading: thousands of times a second somebody looks whether a producer is in it."""

    def failed(self, producer: str, charge: Charge) -> Row | None:
        """One more; the row, once it tells of the producer."""
        row = self.failing.setdefault(producer, Row())
        row[charge] += 1
        self._forget_old(row, charge[0])
        if row.total() < self._eject_after:
            return None
        told = Row({one: times for one, times in row.items() if not self._aside(one[0])})
        if told.total() < self._eject_after or len({consumer for consumer, *_ in told}) < PARTNERS:
            return None
        del self.failing[producer]
        return told

    def _forget_old(self, row: Row, consumer: str) -> None:
        """Each good prefill of a consumer ends its own rows, and more than convict are of no use here."""
        if len(row) > self._eject_after:
            charges = [one for one in row if one[0] == consumer]
            for one in charges[: -self._eject_after]:
                del row[one]

    def fails_elsewhere(self, producer: str, consumer: str) -> bool:
        """It is failing with others than this consumer, who are neither out nor held."""
        row = self.failing.get(producer, ())
        return any(name != consumer and not self._aside(name) for name, *_ in row)

    def end(self, producer: str) -> None:
        """A decode of its KV went well."""
        if producer in self.failing:
            del self.failing[producer]

    def less(self, producer: str, taken: Row) -> None:
        """So much of it was not the producer's."""
        row = self.failing.get(producer)
        if row is not None:
            row -= taken
            if not row:
                del self.failing[producer]

    def forget(self, iid: str) -> None:
        """It begins anew: as a producer, and as a consumer in the rows of others."""
        self.end(iid)
        for producer, row in tuple(self.failing.items()):
            self.less(producer, Row({one: times for one, times in row.items() if one[0] == iid}))

    def clear(self) -> None:
        self.failing.clear()
