"""Leader election by a Lease (`coordination.k8s.io/v1`); docs/decisions/0009.

Semantics of client-go's elector, with three additions. A replica that lost the Lease competes again instead of exiting.
A standby watches the Lease besides polling it. Every term has a number of its own, which the fence (`fence.py`)
compares.
"""

import asyncio
import contextlib
import enum
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from capcard_sched.kube import lease as record
from capcard_sched.kube.client import ApiError, Client, RequestError, Unreachable
from capcard_sched.kube.lease import Lease, LeaseObservation, LeaseSpec
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.report_once import ReportOnce

#: Seconds for which the server keeps a standby's watch open.
WATCH_SECONDS: Final = 300
#: Seconds between attempts to watch without the permission to watch. Polling continues.
UNWATCHABLE_SECONDS: Final = 60.0
#: Detail of `lost` after a release on shutdown.
RELEASED: Final = "released"

_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def boot_clock() -> float:
    """Seconds since boot, monotonic, including suspended time where the system has such a clock.

    `time.monotonic` stops while the machine is suspended: a leader would resume with a Lease that has expired.
    """
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


class ElectionEvent(enum.StrEnum):
    """Events of an election, for logs and metrics."""

    LEADING = "leading"
    LOST = "lost"
    RELEASED = "released"
    HOLDER = "holder"  # another replica leads
    MALFORMED = "malformed"  # the Lease has invalid values
    FORBIDDEN = "forbidden"  # a permission is missing
    NO_NAMESPACE = "no-namespace"
    REFUSED = "refused"  # another error response
    UNREACHABLE = "unreachable"
    RECOVERED = "recovered"  # requests succeed again


def ignore(event: ElectionEvent, detail: str) -> None:
    """Discard an event."""


class Election:
    """One replica's leader elector; `run` it as a task on the event loop.

    Args:
        client: a dedicated one: requests bypass the rate limit, but wait for free connections.
        namespace, name: of the Lease; it is created when it does not exist.
        identity: unique to this process, see `process_identity`.
        lease_duration: seconds that others wait after the last observed renewal of a leader; 1 or more.
        renew_deadline: seconds after sending the last successful renewal at which this replica stops leading; less than
            the lease duration.
        retry_period: seconds between renewals, and between reads of a standby; 1.2 of them are less than the deadline.
        on_change: called on the event loop when leadership begins and ends; its exceptions end `run`.
        on_report: called with each event worth a log line, once per change.
        clock: monotonic seconds.
        calendar: UTC time written into the record for display only.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        on_change: Callable[[bool], None],
        on_report: Callable[[ElectionEvent, str], None] = ignore,
        clock: Callable[[], float] = boot_clock,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._retry_period = retry_period
        #: Seconds; a hanging renewal leaves time for two more.
        self._timeout = renew_deadline / 3
        self._on_change = on_change
        self._on_report = on_report
        self._clock = clock
        self._calendar = calendar
        self._observation = LeaseObservation(identity, lease_duration=lease_duration, renew_deadline=renew_deadline)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        #: Time at which the API server has ended the last binding of the former holder.
        self._handover_until = -math.inf
        #: The current `error` of requests, `problems` of the Lease and `holder`.
        self._reported: ReportOnce[str, str] = ReportOnce()

    def is_leader(self) -> bool:
        """Whether this replica may write now. Called before every write, from any thread."""
        return self._observation.is_leader(self._clock())

    def time_left(self) -> float:
        """Seconds until the Lease can change hands, 0.0 for a standby: the deadline of every write. From any thread."""
        return self._observation.time_left(self._clock())

    @property
    def server_seconds(self) -> float:
        """Seconds for which the API server may process a binding."""
        return self._observation.server_seconds

    def handover_wait(self) -> float:
        """Seconds for which bindings of the former holder can still be committed; 0.0 if the Lease was released."""
        return max(0.0, self._handover_until - self._clock())

    @property
    def identity(self) -> str:
        """`spec.holderIdentity` of this process."""
        return self._observation.identity

    @property
    def holder(self) -> str:
        """Holder in the last observed record; "" when the Lease is free or was never observed."""
        return self._observation.holder

    @property
    def transitions(self) -> int:
        """Number of this replica's current or last term (`spec.leaseTransitions`); -1 before the first."""
        return self._observation.term

    def renewal_age(self) -> float | None:
        """Seconds since the last successful renewal was sent; None for a standby."""
        return self._clock() - self._observation.renewed_at if self._observation.leading else None

    async def run(self) -> None:
        """Acquire, renew, acquire again after a loss. Ends by `release`, or by cancellation: the Lease then expires."""
        if self._stopping:
            return
        self._task = asyncio.create_task(self._compete(), name="election")
        try:
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.result()
        finally:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._step_down("the election stopped")

    async def release(self, timeout: float = 2.0) -> bool:  # noqa: ASYNC109 -- the budget of several requests
        """Stop leading and competing, and release the Lease. Call after the last write.

        Returns:
            False when the Lease may still name this replica: the others then wait for its expiry.
        """
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._step_down(RELEASED)
        if not self._observation.claimed:
            return True
        try:
            async with asyncio.timeout(timeout):
                while not await self._try_release():  # noqa: ASYNC110 -- the API server sets no event
                    await asyncio.sleep(min(0.1, timeout / 10))
                return True
        except TimeoutError:
            self._on_report(
                ElectionEvent.LOST,
                f"{self._lease_name()} not released in {timeout:g} s: others wait up to {self._lease_duration:g} s",
            )
            return False

    async def _try_release(self) -> bool:
        """Try once to release the Lease; True when it no longer names this replica."""
        try:
            await self._read()
            if self.holder != self.identity or not self._observation.exists:
                return True
            await self._write(self._observation.released(self._name, self._namespace, self._calendar()))
        except (RequestError, msgspec.DecodeError) as error:
            if not (isinstance(error, ApiError) and error.status == 409):  # this replica's last renewal came in between
                self._report_error(error)
            return False
        self._on_report(ElectionEvent.RELEASED, self._lease_name())
        return True

    async def _compete(self) -> None:
        while True:
            await self._acquire()
            await self._renew_until_lost()

    async def _acquire(self) -> None:
        """Return once this replica leads."""
        changed = asyncio.Event()
        watching = asyncio.create_task(self._watch(changed), name="election watch")
        try:
            while True:
                changed.clear()
                pause = await self._try_acquire()
                if self._observation.leading:
                    return
                # A Lease that another client keeps rewriting is not read in a busy loop.
                least = min(pause, self._retry_period / 20)
                await asyncio.sleep(least)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, pause - least)):
                        await changed.wait()
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _try_acquire(self) -> float:
        """Read the Lease, and claim it when it is free. Returns seconds until the next attempt."""
        observation = self._observation
        try:
            await self._read()
            self._report_holder()
            wait = observation.wait(self._clock())
            if wait > 0.0:
                self._recovered()
                return min(wait, self._retry_period)
            started = self._clock()
            handover = observation.handover_seconds()
            written = await self._write(observation.claim(self._name, self._namespace, self._calendar()))
            self._recovered()
            if observation.acquired(written, started, self._clock()):
                self._handover_until = started + handover
                self._reported.forget("holder")
                self._on_report(ElectionEvent.LEADING, f"{self._lease_name()}, term {observation.term}")
                self._on_change(True)
        except ApiError as error:
            if error.status == 409:  # another replica wrote first
                return self._retry_period / 4
            self._report_error(error)
        except (Unreachable, msgspec.DecodeError) as error:
            self._report_error(error)
        return self._retry_period

    async def _watch(self, changed: asyncio.Event) -> None:
        """Set `changed` at every change of the Lease, so that a release takes effect at once. Polling continues."""
        path = collection_path("Lease", self._namespace)
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._name}",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        while True:
            pause = self._retry_period
            try:
                async with self._client.stream(path, params, timeout=self._timeout) as stream:
                    while await stream.read():  # the content does not matter: the Lease is read again
                        changed.set()
            except ApiError as error:
                if error.status in {401, 403}:
                    detail = f"watch of {self._lease_name()}: {error.message}: a handover takes up to {pause:g} s"
                    self._on_report(ElectionEvent.FORBIDDEN, detail)
                    pause = UNWATCHABLE_SECONDS
            except (Unreachable, TimeoutError):
                pass
            await asyncio.sleep(pause)

    def _report_holder(self) -> None:
        others = [self.holder] if self.holder not in {"", self.identity} else []
        for holder in self._reported.update("holder", others):
            self._on_report(ElectionEvent.HOLDER, holder)

    async def _renew_until_lost(self) -> None:
        """Renew until the term ends; return as a standby."""
        observation = self._observation
        pause = self._retry_period
        while self.is_leader():
            with contextlib.suppress(TimeoutError):
                # Pause and attempt end with the term, even without a response.
                async with asyncio.timeout(observation.remaining(self._clock())):
                    await asyncio.sleep(pause)
                    if self.is_leader():  # else the process was stopped or starved, and must claim instead of renew
                        pause = await self._renew()
        if observation.holder == observation.identity:
            self._step_down(f"not renewed in time: {self._lease_name()}, term {observation.term}")
        else:
            self._step_down(f"{self._lease_name()} now names {observation.holder or 'no holder'}")

    async def _renew(self) -> float:
        """Renew once, or end the term when the Lease names another holder. Returns seconds until the next renewal."""
        observation = self._observation
        started = self._clock()
        try:
            try:
                written = await self._write(observation.renewal(self._name, self._namespace, self._calendar()))
            except ApiError as error:
                if error.status not in {404, 409}:
                    raise
                # Written by another client, deleted, or written by this replica with the response lost: read it.
                await self._read()
                if observation.holder != observation.identity:
                    observation.expire()
                    return 0.0
                started = self._clock()
                written = await self._write(observation.renewal(self._name, self._namespace, self._calendar()))
            observation.renewed(written, started, self._clock())
            self._recovered()
        except (RequestError, msgspec.DecodeError) as error:
            self._report_error(error)
            return self._retry_period / 4  # the renew deadline is near
        return max(0.0, self._retry_period - (self._clock() - started))

    def _step_down(self, reason: str) -> None:
        if self._observation.step_down():
            self._on_report(ElectionEvent.LOST, reason)
            self._on_change(False)

    async def _read(self) -> None:
        """Read and observe the live Lease, or its absence."""
        lease = None
        try:
            lease = record.decode(await self._request("GET", object_path("Lease", self._namespace, self._name)))
        except ApiError as error:
            if error.status != 404:
                raise
        self._observation.observe(lease, self._clock())
        problems = (
            "; ".join(record.problems(lease.spec or LeaseSpec(), self._lease_duration)) if lease is not None else ""
        )
        for text in self._reported.update("problems", [problems] if problems else []):
            self._on_report(ElectionEvent.MALFORMED, f"{self._lease_name()}: {text}")

    async def _write(self, lease: Lease) -> Lease:
        """Update the last observed Lease, or create it. 409 when another client wrote or created it since."""
        path = object_path("Lease", self._namespace, self._name)
        if self._observation.exists:
            response = await self._request("PUT", path, lease)
        else:
            response = await self._request("POST", collection_path("Lease", self._namespace), lease)
        return record.decode(response)

    async def _request(self, method: str, path: str, lease: Lease | None = None) -> bytes:
        body = None if lease is None else record.encode(lease)
        try:
            async with asyncio.timeout(self._timeout):  # the client's own does not cover reading the token
                return await self._client.request(method, path, body=body, timeout=self._timeout, throttled=False)
        except TimeoutError as error:
            raise Unreachable(f"{method} {path}: no response in {self._timeout:g} s", sent=True) from error

    def _lease_name(self) -> str:
        return f"Lease {self._namespace}/{self._name}"

    def _report_error(self, error: RequestError | msgspec.DecodeError) -> None:
        """Report a failed request, once per change."""
        if isinstance(error, msgspec.DecodeError):
            event, detail = ElectionEvent.MALFORMED, f"the response is not a Lease: {field_problem(error)}"
        elif error.status in {401, 403}:
            event, detail = ElectionEvent.FORBIDDEN, error.text
        elif error.status == 404:
            event = ElectionEvent.NO_NAMESPACE
            detail = f"namespace {self._namespace} does not exist: {error.text}"
        else:
            event, detail = ElectionEvent.REFUSED if error.status else ElectionEvent.UNREACHABLE, str(error)
        if self._reported.update("error", [event]):
            self._on_report(event, f"{self._lease_name()}: {detail}")

    def _recovered(self) -> None:
        if self._reported.forget("error"):
            self._on_report(ElectionEvent.RECOVERED, self._lease_name())
