"""Leader election by a Lease (`coordination.k8s.io/v1`): who may write (docs/decisions/0009).

Semantics of client-go's elector, with three additions: a replica that lost stands by again instead of ending (core
reference W-33), a standby is told of changes by a watch instead of finding them at its next look, and every term has a
number of its own, which the fence (`fence.py`) compares.
"""

import asyncio
import contextlib
import enum
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from capcard_sched.kube import lease as record
from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.lease import Lease, LeaseObservation, LeaseSpec
from capcard_sched.kube.paths import lease_path, leases_path

#: Seconds the server keeps a watch of a standby open; then it is opened anew.
WATCH_SECONDS: Final = 300
#: Seconds between attempts to watch when the server does not let us. Polling goes on meanwhile.
UNWATCHABLE_SECONDS: Final = 60.0
#: Why leadership is `lost` when it was given back on purpose.
GIVEN_BACK: Final = "released"

_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def awake_or_asleep() -> float:
    """Seconds since boot on a clock that never goes back and, where the system has one, counts suspended time too.

    A monotonic clock runs on while a process is stopped, but not while the machine is suspended: a leader that slept
    through its lease would wake up believing in it.
    """
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


class ElectionEvent(enum.StrEnum):
    """What an election has to tell, for logs and metrics."""

    LEADING = "leading"
    LOST = "lost"
    RELEASED = "released"
    HOLDER = "holder"  # another replica leads
    MALFORMED = "malformed"  # somebody wrote a Lease that makes no sense
    FORBIDDEN = "forbidden"  # a right is missing
    NO_NAMESPACE = "no-namespace"
    REFUSED = "refused"  # another error answer
    UNREACHABLE = "unreachable"
    RECOVERED = "recovered"  # the last trouble is over


def ignore(happening: ElectionEvent, detail: str) -> None:
    """Tell nobody."""


class Election:
    """One replica's part in the election of a leader; `run` it as a task on the event loop.

    Args:
        client: better one of its own: ours pass the rate limit, but not a queue for free connections.
        namespace, name: of the Lease; it is created when it does not exist.
        identity: unique to this process, see `process_identity`.
        lease_duration: seconds others wait after they saw the last sign of life of a leader.
        renew_deadline: seconds after the last successful renewal was sent at which this replica stops leading.
        retry_period: seconds between renewals, and between looks of a standby.
        on_change: told on the event loop when leadership begins and ends; what it raises ends `run`.
        on_report: told of everything worth a line in a log, once per change.
        clock: seconds that never go back.
        calendar: the UTC time written into the record for people; nothing depends on it.

    Raises:
        ValueError: durations or names that cannot work, by field.
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
        clock: Callable[[], float] = awake_or_asleep,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        record.check_settings(namespace, name, identity, lease_duration, renew_deadline, retry_period)
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._retry_period = retry_period
        #: A renewal that hangs must leave time for two more.
        self._timeout = renew_deadline / 3
        self._on_change = on_change
        self._on_report = on_report
        self._clock = clock
        self._calendar = calendar
        self._candidate = LeaseObservation(identity, lease_duration=lease_duration, renew_deadline=renew_deadline)
        self._competing: asyncio.Task[None] | None = None
        self._stopping = False
        self._trouble: ElectionEvent | None = None
        self._reported_problems = ""
        self._reported_holder = ""

    # --- questions ----------------------------------------------------------------------------------------------------

    def is_leader(self) -> bool:
        """Whether we may write now. Ask before every write; from any thread."""
        return self._candidate.is_leader(self._clock())

    @property
    def identity(self) -> str:
        """How the record names this process."""
        return self._candidate.identity

    @property
    def holder(self) -> str:
        """Whom the last record seen names; "" when nobody holds the Lease or it was never seen."""
        return self._candidate.holder

    @property
    def transitions(self) -> int:
        """Number of our own current or last term (`spec.leaseTransitions`); -1 before the first."""
        return self._candidate.term

    def renewal_age(self) -> float | None:
        """Seconds since our last successful renewal was sent; None while we do not lead."""
        return self._clock() - self._candidate.renewed_at if self._candidate.leading else None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Compete, lead, lose, stand by and compete again. Ends by `release`, or cancelled: then the Lease runs out."""
        if self._stopping:
            return
        self._competing = asyncio.create_task(self._compete(), name="election")
        try:
            await asyncio.wait({self._competing})
            if not self._competing.cancelled():
                self._competing.result()
        finally:
            self._competing.cancel()
            await asyncio.wait({self._competing})
            self._step_down("the election was stopped")

    async def release(self, timeout: float = 2.0) -> bool:  # noqa: ASYNC109 -- the budget of several requests
        """Stop leading and competing, and let the next one take over at once. Call when nothing is left to write.

        Returns:
            False when the Lease may still name us: the others then wait for it to run out.
        """
        self._stopping = True
        if self._competing is not None:
            self._competing.cancel()
            await asyncio.wait({self._competing})
        self._step_down(GIVEN_BACK)
        if not self._candidate.claimed:
            return True
        try:
            async with asyncio.timeout(timeout):
                while not await self._let_go():  # noqa: ASYNC110 -- the API server sets no event
                    await asyncio.sleep(min(0.1, timeout / 10))
                return True
        except TimeoutError:
            self._on_report(
                ElectionEvent.LOST,
                f"could not release {self._where()} in {timeout:g} s: others wait up to {self._lease_duration:g} s",
            )
            return False

    async def _let_go(self) -> bool:
        """One attempt to give the Lease back; True when it no longer names us."""
        try:
            await self._look()
            if self.holder != self.identity or not self._candidate.exists:
                return True
            await self._write(self._candidate.surrender(self._name, self._namespace, self._calendar()))
        except (ApiError, Unreachable, msgspec.DecodeError) as error:
            if not (isinstance(error, ApiError) and error.status == 409):  # our own last renewal came in between
                self._note(error)
            return False
        self._on_report(ElectionEvent.RELEASED, self._where())
        return True

    async def _compete(self) -> None:
        while True:
            await self._stand_by()
            await self._lead()

    # --- standing by --------------------------------------------------------------------------------------------------

    async def _stand_by(self) -> None:
        """Return as leader."""
        nudged = asyncio.Event()
        watching = asyncio.create_task(self._watch(nudged), name="election watch")
        try:
            while True:
                nudged.clear()
                pause = await self._try_to_claim()
                if self._candidate.leading:
                    return
                # A Lease that somebody keeps rewriting must not make us read it without end.
                least = min(pause, self._retry_period / 20)
                await asyncio.sleep(least)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, pause - least)):
                        await nudged.wait()
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _try_to_claim(self) -> float:
        """Look, and claim the Lease when it is free. Returns seconds until the next look, for when that failed."""
        candidate = self._candidate
        try:
            await self._look()
            self._tell_holder()
            wait = candidate.wait(self._clock())
            if wait > 0.0:
                self._recovered()
                return min(wait, self._retry_period)
            started = self._clock()
            written = await self._write(candidate.claim(self._name, self._namespace, self._calendar()))
            self._recovered()
            if candidate.won(written, started, self._clock()):
                self._reported_holder = ""
                self._on_report(ElectionEvent.LEADING, f"{self._where()}, term {candidate.term}")
                self._on_change(True)
        except ApiError as error:
            if error.status == 409:  # somebody was quicker
                return self._retry_period / 4
            self._note(error)
        except (Unreachable, msgspec.DecodeError) as error:
            self._note(error)
        return self._retry_period

    async def _watch(self, nudged: asyncio.Event) -> None:
        """Set `nudged` at every change of the Lease, so that a release is noticed at once. Polling goes on without."""
        path = leases_path(self._namespace)
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._name}",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        while True:
            pause = self._retry_period
            try:
                async with self._client.stream(path, params, timeout=self._timeout) as stream:
                    while await stream.read():  # what it says does not matter: we look for ourselves
                        nudged.set()
            except ApiError as error:
                if error.status in {401, 403}:
                    detail = f"watch of {self._where()}: {error.message}: handing over takes up to {pause:g} s"
                    self._on_report(ElectionEvent.FORBIDDEN, detail)
                    pause = UNWATCHABLE_SECONDS
            except (Unreachable, TimeoutError):
                pass
            await asyncio.sleep(pause)

    def _tell_holder(self) -> None:
        holder = self.holder
        if holder != self._reported_holder and holder not in {"", self.identity}:
            self._on_report(ElectionEvent.HOLDER, holder)
        self._reported_holder = holder

    # --- leading ------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Renew until the term is over; return as a standby."""
        candidate = self._candidate
        pause = self._retry_period
        while self.is_leader():
            with contextlib.suppress(TimeoutError):
                # Pause and attempt end with the term, even when no answer ever comes.
                async with asyncio.timeout(candidate.left(self._clock())):
                    await asyncio.sleep(pause)
                    if self.is_leader():  # else we were stopped or starved: the next write is a claim, not a renewal
                        pause = await self._renew()
        if candidate.holder == candidate.identity:
            self._step_down(f"not renewed in time: {self._where()}, term {candidate.term}")
        else:
            self._step_down(f"{self._where()} now names {candidate.holder or 'nobody'}")

    async def _renew(self) -> float:
        """Renew once, or end the term when the Lease names somebody else. Returns seconds until the next renewal."""
        candidate = self._candidate
        started = self._clock()
        try:
            try:
                written = await self._write(candidate.renewal(self._name, self._namespace, self._calendar()))
            except ApiError as error:
                if error.status not in {404, 409}:
                    raise
                # Written by somebody else, deleted, or written by us and the answer lost: the live Lease tells.
                await self._look()
                if candidate.holder != candidate.identity:
                    candidate.forfeit()
                    return 0.0
                started = self._clock()
                written = await self._write(candidate.renewal(self._name, self._namespace, self._calendar()))
            candidate.renewed(written, started, self._clock())
            self._recovered()
        except (ApiError, Unreachable, msgspec.DecodeError) as error:
            self._note(error)
            return self._retry_period / 4  # there is a deadline to meet
        return max(0.0, self._retry_period - (self._clock() - started))

    def _step_down(self, reason: str) -> None:
        if self._candidate.step_down():
            self._on_report(ElectionEvent.LOST, reason)
            self._on_change(False)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the live Lease, or that there is none."""
        lease = None
        try:
            lease = record.decode(await self._request("GET", lease_path(self._namespace, self._name)))
        except ApiError as error:
            if error.status != 404:
                raise
        self._candidate.saw(lease, self._clock())
        odd = "; ".join(record.problems(lease.spec or LeaseSpec(), self._lease_duration)) if lease is not None else ""
        if odd and odd != self._reported_problems:
            self._on_report(ElectionEvent.MALFORMED, f"{self._where()}: {odd}")
        self._reported_problems = odd

    async def _write(self, lease: Lease) -> Lease:
        """Update the Lease last seen, or create it. 409 when somebody else wrote or created it meanwhile."""
        path = lease_path(self._namespace, self._name)
        if self._candidate.exists:
            answer = await self._request("PUT", path, lease)
        else:
            answer = await self._request("POST", leases_path(self._namespace), lease)
        return record.decode(answer)

    async def _request(self, method: str, path: str, lease: Lease | None = None) -> bytes:
        body = None if lease is None else record.encode(lease)
        try:
            async with asyncio.timeout(self._timeout):  # the client's own does not cover asking for a token
                return await self._client.request(method, path, body=body, timeout=self._timeout, throttled=False)
        except TimeoutError as error:
            raise Unreachable(f"{method} {path}: no answer in {self._timeout:g} s", sent=True) from error

    # --- reports ------------------------------------------------------------------------------------------------------

    def _where(self) -> str:
        return f"Lease {self._namespace}/{self._name}"

    def _note(self, error: ApiError | Unreachable | msgspec.DecodeError) -> None:
        """Report a failed request, once per change."""
        if isinstance(error, Unreachable):
            happening, detail = ElectionEvent.UNREACHABLE, str(error)
        elif isinstance(error, msgspec.DecodeError):
            happening, detail = ElectionEvent.MALFORMED, f"the answer is no Lease: {error}"
        elif error.status in {401, 403}:
            happening, detail = ElectionEvent.FORBIDDEN, error.message
        elif error.status == 404:
            happening, detail = (
                ElectionEvent.NO_NAMESPACE,
                f"namespace {self._namespace} does not exist: {error.message}",
            )
        else:
            happening, detail = ElectionEvent.REFUSED, f"{error.status} {error.reason}: {error.message}"
        if happening != self._trouble:
            self._trouble = happening
            self._on_report(happening, f"{self._where()}: {detail}")

    def _recovered(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            self._on_report(ElectionEvent.RECOVERED, self._where())
