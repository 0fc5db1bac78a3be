"""What Callslip promises, one row each, and the tests that prove it.

`proof` names tests as `tests/test_x.py::test_y` or `tests/test_x.py::TestZ::test_y`, or is `Later(part)` for a promise
that a later release keeps. tests/test_requirements.py holds this list against the tests, both ways.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = ("decoders", "views", "commands", "page", "postgres")


class Later(NamedTuple):
    """Not promised yet: the part that brings it."""

    part: str


class Requirement(NamedTuple):
    """One promise."""

    id: str
    promise: str
    proof: tuple[str, ...] | Later


R = Requirement
DECODERS, VIEWS, TRACKER, PAGE, POSTGRES = (Later(part) for part in PARTS)

CALLS = (
    R(
        "C1",
        "A call has one id, exec_ and 12 hex digits, that the database keeps unique; all other ids lead to it.",
        (),
    ),
    R(
        "C2",
        "A foreign id stands for the latest call that bore it, and reopening it after the end makes a new call.",
        (),
    ),
    R("C3", "Two calls with the same tool and the same arguments stay two calls.", ()),
    R(
        "C4",
        "One table holds the nine states and their transitions; whatever follows an end is noted and alters nothing.",
        (),
    ),
    R("C5", "No call stays open for ever, whoever dies or goes silent, and its end carries a readable reason.", ()),
    R("C6", "Nobody sees an event, or hears that it was taken, before it is safely stored.", ()),
    R(
        "C7",
        "Sending an event again under its key gives the first answer; another body under that key is a conflict.",
        (),
    ),
    R(
        "C8",
        "The store numbers the events of a session from 1 upwards without holes, and clocks have no say in it.",
        (),
    ),
    R("C9", "Folding live, folding from disk and applying patches agree to the byte after every single event.", ()),
    R("C10", "What an update leaves out stays as it was; an explicit null clears where the protocol means it to.", ()),
    R("C11", "Broken or hostile content in one event leaves the rest of the session readable.", ()),
    R("C12", "The cost of an event does not grow with the length of its session.", ()),
    R("C13", "One table translates each state into the words of every vocabulary.", VIEWS),
)

SHELL = (
    R("S0.1", "Shell tags in streamed text are found exactly once, wherever the chunks are cut.", DECODERS),
    R(
        "S0.2",
        "A command loses its outer blanks, and one with nothing left is dropped without using a number.",
        DECODERS,
    ),
    R(
        "S0.3",
        "A command's id is made of its round and its place in the round, counted from zero, and holds in its turn.",
        DECODERS,
    ),
    R(
        "S0.4",
        "Call, start and result go out by command id, the call before the model has finished speaking.",
        DECODERS,
    ),
    R("S0.5", "The agent loop runs commands in order, feeds results back and stops with a single done.", DECODERS),
    R(
        "S0.6",
        "The model reads each result as a terminal block that says what was cut, the same on every reading.",
        DECODERS,
    ),
    R("S0.7", "A command that takes too long or prints too much is ended with all its descendants.", DECODERS),
    R("S0.8", "Stored history in this format is a list of text and tool parts.", DECODERS),
    R("S0.9", "Finding commands, formatting results and cutting output can be called as plain functions.", DECODERS),
)

ACT_OBSERVE = (
    R(
        "S1.1",
        "An act and its observe bear one execution id, read under either spelling and written under both.",
        DECODERS,
    ),
    R(
        "S1.2",
        "However an execution ends, one observe follows with its id, its duration and whether it failed.",
        DECODERS,
    ),
    R(
        "S1.3",
        "Acts and observes pair by id; names pair them only where neither has an id, in order, within a turn.",
        DECODERS,
    ),
    R("S1.4", "Producers without ids and readers without the new fields go on working.", DECODERS),
    R("S1.5", "Any result can be stored, even one that JSON has no form for.", DECODERS),
    R(
        "S1.6",
        "The timeline shows acts, observes and user messages, and a tool is nameless only if nothing names it.",
        DECODERS,
    ),
    R("S1.7", "After an upgrade the previous version still opens the file, as far back as the file itself says.", ()),
    R("S1.8", "The order in which to upgrade servers and readers, and how to check it, is written down.", PAGE),
)

ENTRIES = (
    R("S2.1", "A session reads as entries of seven types.", ()),
    R("S2.2", "The twelve entry rules live in the fold alone; everything else applies its patches.", ()),
    R("S2.3", "A chunk continues the very last entry if kind and message agree, and otherwise opens another.", ()),
    R(
        "S2.4",
        "Whether a source sends pieces or ever longer wholes is declared or learned, and the text comes out right.",
        (),
    ),
    R("S2.5", "Tools are shown under their short name and keep the name they came with.", ()),
    R("S2.6", "A call can be announced twice, or updated before it was announced, and is still one call.", ()),
    R(
        "S2.7",
        "A permission request outlives a restart and takes one answer; who comes second learns who was first.",
        (),
    ),
    R("S2.8", "Output of any size is kept in full, with a preview and its size on the entry.", ()),
    R("S2.9", "An entry's id is the number of the event that made it, now and after every reload.", ()),
    R(
        "S2.10",
        "Capabilities make an entry each time, commands never, a mode only if it is another one than before.",
        (),
    ),
    R("S2.11", "What an agent replays when a session is loaded does not change what was seen live.", ()),
    R(
        "S2.12",
        "A text counts as streaming until something else makes an entry or its message, turn or source ends.",
        (),
    ),
    R("S2.13", "An answered permission shows the option and the time, reaches the agent and stops being pending.", ()),
    R("S2.14", "The prompt box completes the commands that the agent offers.", PAGE),
    R(
        "S2.15",
        "The entry rules are documented, and rules in the code and rules in the document are the same twelve.",
        PAGE,
    ),
)

COMMANDS = (
    R("S3.1", "Whoever submits a command learns its correlation id without waiting for the outcome.", TRACKER),
    R("S3.2", "A poll tells where a command stands and whether that is final, also for ids nobody knows.", TRACKER),
    R("S3.3", "A poll that waits returns the moment the command ends; one that does not wait works too.", TRACKER),
    R(
        "S3.4",
        "A queued command runs out after its time, counted from its approval, and never once it is done.",
        TRACKER,
    ),
    R(
        "S3.5",
        "The lists of commands are short windows, while any id can be looked up as long as the log is kept.",
        TRACKER,
    ),
    R("S3.6", "An executor polls or claims; a claim that went stale cannot overwrite the outcome.", TRACKER),
    R("S3.7", "A client's full queue turns new commands away, or lets the oldest go if so configured.", TRACKER),
    R("S3.8", "Tracking commands is small and quick and never holds up the recording of events.", TRACKER),
    R("S3.9", "Agents submit and observe commands over MCP, as two tools and as tasks.", TRACKER),
    R("S3.10", "The whole life of a command can be driven from Python.", TRACKER),
    R("S3.11", "A command that waits says how long its queue is and when an executor was last there.", TRACKER),
    R("S3.12", "A browser extension can be an executor once its origin is allowed.", TRACKER),
)

HISTORY = (
    R("S4.1", "Stored rows become chat messages, each call joined with its result, newest message first.", DECODERS),
    R("S4.2", "Reasoning stands before text, and calls and messages say whether they are complete.", DECODERS),
    R("S4.3", "The validation mark of a call is one of four words, by its row and by what its tool demands.", DECODERS),
    R(
        "S4.4",
        "Calls that no message closes appear under a placeholder with a lasting id and a derived time.",
        DECODERS,
    ),
    R("S4.5", "Pages of any size together hold each message once, with every result beside its call.", VIEWS),
    R("S4.6", "A person may accept a call, reject it with a word to the model, or change its arguments, once.", VIEWS),
    R("S4.7", "A refreshed page shows what the live one showed, whatever state the call was in.", VIEWS),
    R("S4.8", "Text, call and closing text of one exchange come out as one assistant message.", DECODERS),
    R("S4.9", "The conversion of rows to messages is a public function without side effects.", DECODERS),
    R(
        "S4.10",
        "The demo answers its sample questions, and a real browser checks live view, refresh and approval.",
        PAGE,
    ),
)

REQUIREMENTS = (*CALLS, *SHELL, *ACT_OBSERVE, *ENTRIES, *COMMANDS, *HISTORY)
