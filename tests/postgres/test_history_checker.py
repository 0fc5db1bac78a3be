"""The checker of histories finds each kind of fault, and none where there is none."""

from __future__ import annotations

import pytest

import callslip
from callslip.model import events as ev
from tests.support.history_checker import (
    Content,
    Operation,
    Reader,
    StoredCall,
    StoredEvent,
    check,
    read_content,
)


class Run:
    """A history without a fault, whose parts a test changes."""

    def __init__(self) -> None:
        self.operations = [
            Operation(kind="event", session="s", id="first", seq=1, started=1, ended=2),
            Operation(kind="event", session="s", id="second", seq=2, started=3, ended=4),
            Operation(kind="event", session="s", id="perhaps", outcome="unknown", started=5, ended=6),
            Operation(kind="event", session="s", id="never", outcome="refused"),
            Operation(kind="command", session="s", id="job", key=True),
            Operation(kind="result", session="s", id="job", state="completed"),
            Operation(kind="end", session="s", id="exec_1", state="completed"),
            Operation(kind="answer", session="s", id="appr_1", state="granted"),
            Operation(kind="answer", session="s", id="appr_1", state="refused", outcome="refused"),
        ]
        self.readers = [Reader(session="s", seqs=[1, 2, 3, 4]), Reader(session="s", seqs=[1], is_complete=False)]
        self.content = Content(
            heads={"s": 4},
            events=[
                StoredEvent(session="s", seq=1, type="message.user", text="first"),
                StoredEvent(session="s", seq=2, type="message.user", text="second"),
                StoredEvent(session="s", seq=3, type="approval.granted", call="exec_1", approval="appr_1"),
                StoredEvent(session="s", seq=4, type="call.completed", call="exec_1"),
            ],
            calls=[
                StoredCall(id="exec_1", session="s", state="completed", correlation_id="job", is_command=True),
                StoredCall(id="exec_2", session="s", state="running", has_owner=True),
            ],
            approvals={"appr_1": "granted"},
        )

    def store(self, **fields: object) -> None:
        """Add one more event to the session."""
        self.content.heads["s"] += 1
        event = StoredEvent(session="s", seq=self.content.heads["s"], **fields)  # pyright: ignore[reportArgumentType]
        self.content.events.append(event)
        self.readers[0].seqs.append(event.seq)

    def faults(self) -> list[str]:
        return check(self.operations, self.readers, self.content).faults


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_history_without_a_fault_is_counted(run: Run) -> None:
    """An unknown operation may be missing or stored, and a reader that did not finish may have read less."""
    report = check(run.operations, run.readers, run.content)
    assert report.faults == []
    assert report.counts["acknowledged"] == 6 and report.counts["unknown"] == 1 and report.counts["refused"] == 2
    assert report.counts["events"] == 4 and report.counts["readers"] == 2 and report.counts["with key"] == 1
    assert "events 4" in str(report)
    run.store(type="message.user", text="perhaps")
    assert run.faults() == []


def test_a_lost_event_is_found(run: Run) -> None:
    """An acknowledged event must be stored."""
    run.content.events[0].text = "another"
    assert run.faults() == ["event 'first' of session s: acknowledged as 1, and lost"]


def test_an_event_at_another_place_is_found(run: Run) -> None:
    """An acknowledged event must be stored with its seq."""
    run.content.events[0].text, run.content.events[1].text = "second", "first"
    assert "event 'first' of session s: acknowledged as 1, and stored as [2]" in run.faults()


@pytest.mark.parametrize("text", ["first", "perhaps"])
def test_an_event_that_is_stored_twice_is_found(run: Run, text: str) -> None:
    """No event may be stored twice, whether it was acknowledged or its outcome is unknown."""
    run.store(type="message.user", text=text)
    run.store(type="message.user", text=text)
    assert any(f"event {text!r} of session s: stored" in fault for fault in run.faults())


def test_a_refused_event_that_is_stored_is_found(run: Run) -> None:
    """A refusal means that nothing was written."""
    run.store(type="message.user", text="never")
    assert run.faults() == ["event 'never' of session s: refused, and stored as [5]"]


def test_a_gap_is_found(run: Run) -> None:
    """The seqs of a session have no gap."""
    run.content.events[2].seq = 5
    run.content.heads["s"] = 5
    assert "session s: must have the events 1 to 5, has 4 up to 5, repeated [], missing [3]" in run.faults()


def test_a_seq_that_is_used_twice_is_found(run: Run) -> None:
    """No two events of a session have one seq."""
    run.content.events[3].seq = 3
    assert any("repeated [3]" in fault for fault in run.faults())


def test_a_missing_end_of_a_session_is_found(run: Run) -> None:
    """The last seq of a session is that of its last event, also if it has none."""
    run.content.heads |= {"s": 5, "empty": 1}
    assert "session s: must have the events 1 to 5, has 4 up to 4, repeated [], missing []" in run.faults()
    assert "session empty: must have the events 1 to 1, has none" in run.faults()


def test_a_wrong_order_is_found(run: Run) -> None:
    """What is sent after an acknowledgement comes later in the session."""
    run.operations[0].started, run.operations[0].ended = 7, 8
    assert run.faults() == ["session s: event 1 was sent after 2 was acknowledged"]
    run.operations[0].started = 3.5  # They overlap.
    assert run.faults() == []


def test_two_applied_ends_are_found(run: Run) -> None:
    """A call ends once. A late end that was stored without effect is none."""
    run.store(type="call.failed", call="exec_1", verdict="late")
    assert run.faults() == []
    run.store(type="call.failed", call="exec_1")
    assert run.faults() == ["call exec_1: is completed, and has the applied ends ['completed', 'failed']"]


def test_an_end_without_an_event_is_found(run: Run) -> None:
    """The state of a call is that of its end."""
    run.content.calls[0].state = "lost"
    assert "call exec_1: is lost, and has the applied ends ['completed']" in run.faults()
    assert "call exec_1: acknowledged as completed, and is lost" in run.faults()


def test_an_end_of_an_unknown_call_is_found(run: Run) -> None:
    """Every call that has an end has a record."""
    run.store(type="call.failed", call="exec_9")
    assert run.faults() == ["call exec_9: has the ends ['failed'], and no record"]


def test_an_open_call_without_an_owner_is_found(run: Run) -> None:
    """An open call has a process, a lease or a deadline that ends it."""
    run.content.calls[1].has_owner = False
    assert run.faults() == ["call exec_2: is running, and nothing will end it"]


def test_a_command_that_exists_twice_is_found(run: Run) -> None:
    """A submission that is repeated with its key creates no second command."""
    run.content.calls.append(
        StoredCall(id="exec_3", session="s", state="expired", correlation_id="job", is_command=True)
    )
    run.store(type="call.expired", call="exec_3")
    assert run.faults() == ["command job: exists 2 times, as ['exec_1', 'exec_3']"]


def test_a_command_that_ended_twice_is_found(run: Run) -> None:
    """A command is completed or ended once."""
    run.store(type="call.expired", call="exec_1")
    assert run.faults() == ["call exec_1: is completed, and has the applied ends ['completed', 'expired']"]


def test_a_command_that_never_ended_is_found(run: Run) -> None:
    """At the end of a run no command is open, even one with a lease."""
    run.content.calls.append(
        StoredCall(id="exec_3", session="s", state="queued", correlation_id="j2", is_command=True, has_owner=True)
    )
    assert run.faults() == ["command j2: is queued at the end"]


def test_a_lost_command_is_found(run: Run) -> None:
    """An acknowledged command exists, and everyone saw the result that is stored."""
    run.content.calls[0].correlation_id = "other"
    assert "command job: acknowledged, and lost" in run.faults()
    run.content.calls[0].correlation_id = "job"
    run.operations[5].state = "failed"
    assert run.faults() == ["command job: a client saw failed, and the end is ['completed']"]


def test_two_applied_answers_are_found(run: Run) -> None:
    """The first answer to an approval is the only one."""
    run.store(type="approval.refused", call="exec_1", approval="appr_1")
    assert "approval appr_1: is granted, and has the applied answers ['granted', 'refused']" in run.faults()
    assert "call exec_1: is completed, and has the applied ends ['completed', 'denied']" in run.faults()


def test_a_lost_answer_is_found(run: Run) -> None:
    """An acknowledged answer is the stored one."""
    run.operations[7].state = "refused"
    assert run.faults() == ["approval appr_1: acknowledged as refused, and is granted"]


@pytest.mark.parametrize("seqs", [[1, 3, 4], [1, 2, 2, 3, 4], [2, 3, 4], [1, 3, 2, 4], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_a_reader_that_missed_or_repeated_an_event_is_found(run: Run, seqs: list[int]) -> None:
    """A reader receives each event once and in order."""
    run.readers[0].seqs = seqs
    (fault,) = run.faults()
    assert fault.startswith("reader 0 of session s: ")


@pytest.mark.anyio
async def test_a_database_is_read_completely(db: str) -> None:
    """The content of a ledger has every event, call and approval, and who keeps a call alive."""
    async with await callslip.open(db) as ledger:
        session = ledger.session("s")
        await ledger.log.append("s", [ev.MessageUser(text="hi")])
        async with session.call("done") as call:
            call.complete("out")
        async with session.call("running") as running:
            content = await read_content(ledger)
            assert content.heads == {"s": max(event.seq for event in content.events)}
            assert [event.text for event in content.events if event.text] == ["hi", "out"]
            assert {found.id: found.state for found in content.calls} == {call.id: "completed", running.id: "running"}
            assert all(found.has_owner for found in content.calls)
            assert check([], [], content).faults == []
