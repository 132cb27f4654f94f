"""What agents say, taken in: facts of nodes, states of attempts, silence. Each word is committed before it is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable

from manager.fleet.desired import AttemptReport, ListenerBrokenError, NodeFacts, NodeReport
from manager.lifecycle.desires import Concerned
from manager.lifecycle.images import SeenImage
from manager.lifecycle.machine import Observation
from manager.lifecycle.states import Observed
from manager.lifecycle.working_set import put_back, take_out
from manager.store import attempts, conditions, leadership, nodes, shares
from manager.store.database import Database, StoreUnavailable

_log = logging.getLogger(__name__)

# Reports of many agents share a commit, up to this many.
_MAX_BATCH = 256

AttemptKey = tuple[uuid.UUID, int]
# A report, and what its link waits for.
Pending = tuple[NodeReport, asyncio.Future[None]]


def _answer(batch: Collection[Pending], error: ListenerBrokenError | None = None) -> None:
    """Tells the links that still wait."""
    for _, done in batch:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)


def parse_attempt_id(text: str) -> AttemptKey | None:
    """Kernel and epoch of an attempt's id; None when it is none of ours."""
    kernel, _, epoch = text.rpartition(".")
    try:
        return uuid.UUID(kernel), int(epoch)
    except ValueError:
        return None


class Reports:
    """The listener behind all links of a leader. `committed` is told which agents a commit concerns, and wakes what has to be woken."""

    def __init__(self, database: Database, term: int, committed: Callable[[Concerned], None]) -> None:
        self._database = database
        self._term = term
        self._committed = committed
        self._queue: asyncio.Queue[Pending] = asyncio.Queue()

    async def welcomed(self, facts: NodeFacts) -> None:
        """A stream opened. An attempt that the agent had told of before and knows nothing of now is over: it is never started again."""
        try:
            await self._welcome(facts)
        except StoreUnavailable as error:
            raise ListenerBrokenError(f"the database did not take what it has: {error}") from error

    async def _welcome(self, facts: NodeFacts) -> None:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            changed_group = await nodes.record_facts(
                tx,
                facts.agent_id,
                instance=facts.instance,
                boot_id=facts.boot_id,
                version=facts.version,
                architecture=facts.architecture,
                capacity=facts.capacity,
                backends=facts.backends,
                underlay_address=facts.underlay_address,
                underlay_mtu=facts.underlay_mtu,
            )
            if changed_group is not None:
                await shares.refresh_group(tx, changed_group)
            live = await attempts.read_live(tx, facts.agent_id)
            absent = await attempts.read_sites(tx, facts.agent_id) - {
                uuid.UUID(text) for text in facts.network_session_ids
            }
        await self._set_agent_lost(facts.agent_id, lost=False)
        known = {parse_attempt_id(report.attempt_id) for report in facts.attempts}
        forgotten = [
            AttemptReport(
                f"{row['kernel_id']}.{row['epoch']}",
                Observed.EXITED,
                None,
                "RECORD_LOST",
                "the agent has no record of it",
                0,
            )
            for row in live
            if row["observed"] and (row["kernel_id"], row["epoch"]) not in known
        ]
        await self._commit([NodeReport(facts.agent_id, (*facts.attempts, *forgotten), (), tuple(map(str, absent)))])

    async def reported(self, report: NodeReport) -> None:
        """Something changed on a node. Returns once it is committed, together with what other agents say meanwhile."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((report, done))
        await done

    async def became(self, agent_id: str, state: str, silence: float) -> None:
        """An agent's liveness changed."""
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            group = await nodes.record_state(tx, agent_id, state)
            if group is not None:
                await shares.refresh_group(tx, group)
        if state != "SUSPECT":
            await self._set_agent_lost(agent_id, lost=state == "LOST")
        self._committed({agent_id: None})

    async def _set_agent_lost(self, agent_id: str, *, lost: bool) -> None:
        # On its own: sessions are locked before agents everywhere else, and the journal last.
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await conditions.set_agent_lost(tx, agent_id, lost=lost)

    async def run(self) -> None:
        """Commits reports as they come until cancelled."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._take_in(batch)
            finally:
                _answer(batch, ListenerBrokenError("this manager stops leading"))

    async def _take_in(self, batch: Collection[Pending]) -> None:
        """Commits reports together. What was not committed is not acknowledged: its link ends, and comes back with all it observes."""
        try:
            await self._commit([report for report, _ in batch])
        except leadership.NotLeader:
            raise
        except StoreUnavailable as error:
            _log.warning("%d reports wait for the database: %s", len(batch), error)
            _answer(batch, ListenerBrokenError(f"the database did not take its report: {error}"))
        except Exception as error:  # noqa: BLE001  # logged below; one node's report must not hold up those of all others
            if len(batch) > 1:
                for pending in batch:
                    await self._take_in([pending])
                return
            for report, _ in batch:
                _log.exception("the report of agent %s was not committed", report.agent_id)
            _answer(batch, ListenerBrokenError(f"its report was not committed: {error!r}"))
        else:
            _answer(batch)

    async def _commit(self, reports: Iterable[NodeReport]) -> None:
        words: dict[AttemptKey, AttemptReport] = {}
        speakers: dict[AttemptKey, str] = {}
        removed: dict[str, set[uuid.UUID]] = {}
        for report in reports:
            for word in report.attempts:
                if (key := parse_attempt_id(word.attempt_id)) is not None and word.state:
                    words[key] = word
                    speakers[key] = report.agent_id
            removed.setdefault(report.agent_id, set()).update(uuid.UUID(text) for text in report.removed_networks)
        async with self._database.transaction() as tx:
            leading, live = await tx.together(leadership.checking(self._term), attempts.finding_sessions(list(words)))
            leadership.checked(leading, self._term)
            of_session = {(row["kernel_id"], row["epoch"]): row["session_id"] for row in live}
            taken = await take_out(tx, set(of_session.values()))
            for (kernel_id, epoch), session_id in of_session.items():
                word = words[kernel_id, epoch]
                taken.output_sizes[kernel_id, epoch] = word.log_size
                if (machine := taken.machines.get(session_id)) is not None:
                    image = (
                        SeenImage(word.image.digest, word.image.id, word.image.service_ports)
                        if word.image
                        else SeenImage()
                    )
                    observation = Observation(Observed(word.state), word.exit_code, word.reason, word.message, image)
                    if word.layers:
                        taken.pulls[kernel_id, epoch] = word.layers
                    machine.observe(kernel_id, epoch, observation)
            dropping = [
                statement
                for agent_id, session_ids in removed.items()
                if session_ids
                for statement in attempts.dropping_sites(agent_id, session_ids)
            ]
            *_, rows = await put_back(
                tx, taken, *dropping, attempts.finding_concerned(list(taken.machines)), commit=True
            )
        concerned = attempts.concerned(rows)
        # An agent with nothing more to do for a session has to be told so too.
        for key, session_id in of_session.items():
            concerned.setdefault(speakers[key], set()).add(session_id)
        for agent_id, session_ids in removed.items():
            concerned.setdefault(agent_id, set()).update(session_ids)
        self._committed(concerned)
