"""Connections that do not stay: uvicorn waits for ever for a request that has begun."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 100
"""Connections of the server. A browser opens six."""
REQUEST_S = 10.0
"""Seconds in which a request has to come, its form with it."""
ANSWER_S = 300.0
"""Seconds in which it has to be answered and the answer taken; one page waits 120 for a process."""


class Connection(H11Protocol):
    """HTTP of a connection that ends in time, or before where the server has too many."""

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)  # type: ignore[arg-type]  # as it says itself
        self._end_in(REQUEST_S)
        known = [each for each in self.connections if isinstance(each, Connection) and each.timer]
        if len(known) > MOST:
            # The one whose time is up first: it waits for a request, if any does.
            min(known, key=lambda each: each.timer.when() if each.timer else 0.0).end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        """Give the answer time once the request is there. A byte now and then prolongs nothing."""
        waited = self._waits
        super().data_received(data)
        if waited and not self._waits:
            self._end_in(ANSWER_S)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._end_in(REQUEST_S if self._waits else ANSWER_S)

    def end(self) -> None:
        """Close the connection, whatever is under way."""
        self._stop_timer()
        self.transport.abort()

    @property
    def _waits(self) -> bool:
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _end_in(self, seconds: float) -> None:
        self._stop_timer()
        self.timer = self.loop.call_later(seconds, self.end)

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None
