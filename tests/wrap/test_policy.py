"""Policies: which rule fits which request, which option it chooses, and how a bad file is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.wrap import permission_filter as desks
from callslip.wrap.permission_filter import Answer, PermissionFilter
from callslip.wrap.policy import FILTERS, PermissionQuery, Policy, load, permission_query
from tests.support.format_cases import CAPTURES, damaged, garbage

OPTIONS = [
    {"optionId": "A", "kind": "allow_always"},
    {"optionId": "a", "kind": "allow_once"},
    {"optionId": "r", "kind": "reject_once"},
    {"optionId": "R", "kind": "reject_always"},
]
CALL = {"toolCallId": "c1", "kind": "execute", "title": "ls", "rawInput": {"command": "ls -l", "deep": {"n": 1}}}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes a policy and reads it."""

    def write(text: str) -> Policy:
        (tmp_path / "policy.toml").write_text(text)
        return load(tmp_path / "policy.toml")

    return write


def rule(action: str = "allow", **filters: Any) -> str:
    return f"[[rule]]\naction = {json.dumps(action)}\n" + "".join(
        f"{name.replace('__', '.')} = {json.dumps(value)}\n" for name, value in filters.items()
    )


def request(call: Any = CALL, options: Any = OPTIONS, identity: Any = 7) -> bytes:
    params = {"sessionId": "s", "toolCall": call, "options": options}
    message = {"jsonrpc": "2.0", "id": identity, "method": "session/request_permission", "params": params}
    return json.dumps(message).encode() + b"\n"


def update(**told: Any) -> bytes:
    params = {"sessionId": "s", "update": {"sessionUpdate": "tool_call", "toolCallId": "c1", **told}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode() + b"\n"


def sorted_(desk: PermissionFilter, data: bytes) -> tuple[bytes, list[Answer]]:
    """What passes, and the answers."""
    found = list(desk.sort(data))
    return b"".join(piece for piece, answer in found if answer is None), [one for _, one in found if one is not None]


def chosen(policy: Policy, *lines: bytes) -> str:
    """The option that answers the last of some lines; "" if the client is asked."""
    passed, answers = sorted_(PermissionFilter(policy), b"".join(lines))
    if not answers:
        assert passed == b"".join(lines)
        return ""
    (answer,) = answers
    message = json.loads(answer.line)
    assert json.loads(answer.record)["msg"] == message and message["id"] == 7
    return message["result"]["outcome"]["optionId"]


# Filters


@pytest.mark.parametrize(
    ("filters", "fits"),
    [
        ({}, True),
        ({"kind": "execute"}, True),
        ({"kind": ["read", "exec*"]}, True),
        ({"kind": "exec"}, False),
        ({"title": "l?"}, True),
        ({"title": "L*"}, False),
        ({"title": "regex:l.|x"}, True),
        ({"title": "regex:l"}, False),
        ({"input__command": "ls *"}, True),
        ({"input__command": "ls"}, False),
        ({"input__deep__n": "1"}, True),
        ({"input__deep__m": "*"}, False),
        ({"input__command": "*", "input__deep__n": "2"}, False),
        ({"input": '{"command":"ls -l"*'}, True),
        ({"input": "*rm*"}, False),
        ({"kind": "execute", "title": "no"}, False),
        ({"path": "**"}, False),
        ({"tool": "*"}, False),
    ],
)
def test_a_rule_fits_if_each_of_its_filters_does(written: Any, filters: dict[str, Any], fits: bool) -> None:
    """Patterns fit whole texts; what is not known of a call fits nothing."""
    assert chosen(written(rule(**filters)), request()) == ("a" if fits else "")


@pytest.mark.parametrize(
    ("command", "fits"),
    [
        (["/bin/bash", "-lc", "git status"], True),
        ("/bin/bash -lc git status", True),
        (["git", 1], False),
        ({"x": 1}, False),
        (None, False),
    ],
)
def test_a_command_in_words_is_one_line(written: Any, command: Any, fits: bool) -> None:
    """Agents write commands as a text or as a list of words."""
    policy = written(rule(input__command="* git status"))
    assert bool(chosen(policy, request({"toolCallId": "c1", "rawInput": {"command": command}}))) is fits


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/p/**", "/p/a/b.txt", True),
        ("/p/*", "/p/a/b.txt", False),
        ("/p/*", "/p/b.txt", True),
        ("/p/**", "/p/../etc/passwd", False),
        ("/p/**", "/p/./x/../y", True),
        ("/p/?.txt", "/p/a.txt", True),
        ("/p/?.txt", "/p//.txt", False),
        ("/p/[a].txt", "/p/[a].txt", True),
        ("~/**", "/home/someone/x", True),
        ("**/.env", "/p/q/.env", True),
        ("regex:/p/[ab]", "/p/a", True),
    ],
)
def test_paths_are_matched_step_by_step(
    written: Any, monkeypatch: pytest.MonkeyPatch, pattern: str, path: str, fits: bool
) -> None:
    """A star ends at a slash, two go beyond, and a detour through `..` leads where it leads."""
    monkeypatch.setenv("HOME", "/home/someone")
    call = {"toolCallId": "c1", "locations": [{"path": path}]}
    assert bool(chosen(written(rule(path=pattern)), request(call))) is fits


def test_to_allow_every_path_must_fit_and_to_deny_one_will_do(written: Any) -> None:
    """A call that touches one good and one bad file is not let through by the good one."""
    call = {
        "toolCallId": "c1",
        "locations": [{"path": "/p/a"}],
        "content": [{"type": "diff", "path": "/etc/b", "newText": "x"}],
    }
    assert chosen(written(rule(path="/p/**")), request(call)) == ""
    assert chosen(written(rule(path=["/p/**", "/etc/*"])), request(call)) == "a"
    assert chosen(written(rule("deny", path="/etc/**")), request(call)) == "r"


def test_the_first_rule_that_fits_decides(written: Any) -> None:
    """Later ones are not asked, and `ask` decides too."""
    assert chosen(written(rule("deny", kind="execute") + rule("allow")), request()) == "r"
    assert chosen(written(rule("ask", kind="execute") + rule("allow")), request()) == ""
    assert chosen(written(rule("deny", kind="read") + rule("allow")), request()) == "a"
    assert chosen(written(""), request()) == ""


def test_a_tool_is_known_by_its_own_name_and_by_its_servers(written: Any) -> None:
    """S2.5: the name may have been told before the request, as may everything else."""
    named = update(_meta={"claudeCode": {"toolName": "mcp__fs__Read"}}, title="Read it")
    bare = request({"toolCallId": "c1"})
    for name in ("mcp__fs__Read", "mcp__fs__*"):
        assert chosen(written(rule(tool=name, title="Read it")), named, bare) == "a"
        assert chosen(written(rule("deny", tool=name, title="Read it")), named, bare) == "r"
    assert chosen(written(rule("deny", tool="Read")), named, bare) == "r"
    assert chosen(written(rule(tool="Read")), named, bare) == "", "anybody's server may have a tool of that name"
    assert chosen(written(rule(tool="Read")), bare) == ""


def test_what_was_told_of_an_older_call_of_the_same_id_does_not_count(written: Any) -> None:
    """A call that begins anew, or has ended, leaves nothing behind that could allow the next."""
    policy, bare = written(rule(input__command="ls")), request({"toolCallId": "c1"})
    told = update(rawInput={"command": "ls"})
    assert chosen(policy, told, bare) == "a"
    assert chosen(policy, told, update(title="another"), bare) == ""
    assert chosen(policy, told, update(status="completed"), bare) == ""
    assert chosen(policy, told, request({"toolCallId": "c1", "rawInput": {"command": "rm"}})) == ""
    assert chosen(policy, told, request({"toolCallId": "c1", "rawInput": None})) == ""


def test_only_so_many_calls_are_followed(written: Any) -> None:
    """An agent that opens calls and never ends them does not fill the memory."""
    desk = PermissionFilter(written(rule(kind="read")))
    for number in range(3 * desks.FOLLOWED):
        sorted_(desk, update(kind="read").replace(b'"c1"', f'"c{number}"'.encode()))
    assert len(desk._calls) == desks.FOLLOWED
    assert not sorted_(desk, request({"toolCallId": "c1"}))[1]
    assert sorted_(desk, request({"toolCallId": f"c{3 * desks.FOLLOWED - 1}"}))[1]


def test_a_command_that_the_draft_asks_about_is_judged_by_its_text(written: Any) -> None:
    """Draft 2: the question is about a command, and there may be no call at all."""
    subject = {"type": "command", "command": "git status", "cwd": "/p"}
    params = {"sessionId": "s", "title": "May I?", "subject": subject, "options": OPTIONS}
    message = {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": params}
    line = json.dumps(message).encode() + b"\n"
    assert chosen(written(rule(kind="execute", input__command="git status")), line) == "a"
    assert chosen(written(rule(input__command="git push")), line) == ""


# What a hostile agent might try


@pytest.mark.parametrize(
    "call",
    [
        {"kind": "read"},
        {"kind": "read", "locations": None},
        {"kind": "read", "locations": [{"path": "etc/passwd"}]},
        {"kind": "read", "locations": [{"path": "file:///etc/passwd"}]},
        {"kind": "read", "locations": [{"path": ["/etc/passwd"]}]},
        {"kind": "read", "locations": [{"path": "/p/a"}, {"path": "../etc/passwd"}]},
    ],
)
def test_a_path_that_is_not_told_does_not_slip_by_a_rule_that_looks_at_paths(written: Any, call: Any) -> None:
    """What might have been stopped is not allowed by a later rule; the client is asked."""
    policy = written(rule("deny", path="/etc/**") + rule("allow", kind="read"))
    assert chosen(policy, request({"toolCallId": "c1", **call})) == ""
    assert chosen(written(rule("allow", path="**")), request({"toolCallId": "c1", **call})) == ""


@pytest.mark.parametrize("path", ["//etc/passwd", "///etc/passwd", "/p/../etc/passwd", "/ETC/passwd", "/etc/./passwd"])
def test_a_denied_path_is_denied_however_it_is_written(written: Any, path: str) -> None:
    """Slashes, detours, and letters that a file system may take for the same."""
    policy = written(rule("deny", path="/etc/**") + rule("allow"))
    assert chosen(policy, request({"toolCallId": "c1", "locations": [{"path": path}]})) == "r"


def test_links_are_followed_before_a_path_is_judged(written: Any, tmp_path: Path) -> None:
    """A link within an allowed folder leads out of it; a folder that is itself behind a link is still that folder."""
    (tmp_path / "p").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "p" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "home").symlink_to(tmp_path / "p")

    def asks(path: str) -> bytes:
        return request({"toolCallId": "c1", "locations": [{"path": f"{tmp_path}/{path}"}]})

    inside = written(rule(path=f"{tmp_path}/p/**"))
    assert [chosen(inside, asks(path)) for path in ("p/a", "p/link/key", "p/link/../a", "home/a")] == ["a", "", "", ""]
    assert chosen(written(rule(path=f"{tmp_path}/home/**")), asks("home/a")) == "a"
    assert chosen(written(rule("deny", path=f"{tmp_path}/secret/**") + rule()), asks("p/link/key")) == "r"


def test_accents_are_the_same_however_they_are_composed(written: Any) -> None:
    """One letter or a letter and its accent: file systems take them for the same name."""
    policy = written(rule("deny", path="/p/\u00e9/**") + rule())
    assert chosen(policy, request({"toolCallId": "c1", "locations": [{"path": "/p/e\u0301/x"}]})) == "r"


@pytest.mark.parametrize("call", [{}, {"rawInput": None}, {"rawInput": "rm -rf /"}, {"rawInput": {"command": None}}])
def test_an_input_that_is_not_told_does_not_slip_by_a_rule_that_looks_at_it(written: Any, call: Any) -> None:
    """An object without that member is another thing: it says that there is none."""
    policy = written(rule("deny", input__command="*rm*") + rule("allow", kind="execute"))
    assert chosen(policy, request({"toolCallId": "c1", "kind": "execute", **call})) == ""
    told = request({"toolCallId": "c1", "kind": "execute", "rawInput": {"path": "/"}})
    assert chosen(policy, told) == "a"


@pytest.mark.parametrize("filters", [{"tool": "Bash"}, {"kind": "execute"}, {"title": "rm*"}])
def test_a_word_that_is_not_told_does_not_slip_by_either(written: Any, filters: dict[str, str]) -> None:
    """Asking is a stop, too; a filter that surely does not fit leaves no doubt."""
    for action in ("deny", "ask"):
        assert chosen(written(rule(action, **filters) + rule()), request({"toolCallId": "c1"})) == ""
        sure = written(rule(action, **filters, input__x="y") + rule())
        assert chosen(sure, request({"toolCallId": "c1", "rawInput": {}})) == "a"


@pytest.mark.parametrize(
    "unread",
    [
        update(rawInput={"command": "rm"}).replace(b"tool_call", b"tool\\u005fcall"),
        update(rawInput={"command": "rm"})[:-2] + b"\n",
        update(rawInput={"command": "rm", "x": "y" * 5000}),
    ],
)
def test_what_an_unread_line_may_have_told_is_not_taken_as_it_was(
    written: Any, monkeypatch: pytest.MonkeyPatch, unread: bytes
) -> None:
    """Too long, no JSON, or spelt so that nobody looks: what was known before does not allow."""
    monkeypatch.setattr(desks, "MAX_LINE_BYTES", 2000)
    desk, bare = PermissionFilter(written(rule(input__command="ls"))), request({"toolCallId": "c1"})
    sorted_(desk, update(rawInput={"command": "ls"}))
    for cut in (unread[:2500], unread[2500:]):
        sorted_(desk, cut)
    assert sorted_(desk, bare) == (bare, [])


def test_the_end_of_a_line_that_is_too_long_is_no_request(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes with the rest of its line."""
    monkeypatch.setattr(desks, "MAX_LINE_BYTES", 1000)
    desk = PermissionFilter(written(rule()))
    sorted_(desk, b"x" * 2000)
    assert sorted_(desk, request()) == (request(), [])


# Options


@pytest.mark.parametrize(
    ("action", "always", "offered", "option"),
    [
        ("allow", False, "AarR", "a"),
        ("deny", False, "AarR", "r"),
        ("allow", True, "AarR", "A"),
        ("deny", True, "AarR", "R"),
        ("allow", True, "ar", "a"),
        ("allow", False, "AR", ""),
        ("deny", False, "AaR", ""),
        ("ask", True, "AarR", ""),
        ("allow", False, "", ""),
    ],
)
def test_an_answer_is_the_agents_own_option_for_this_once(
    written: Any, action: str, always: bool, offered: str, option: str
) -> None:
    """What the agent would remember is chosen only if the rule says so; if nothing fits, the client is asked."""
    options = [one for one in OPTIONS if one["optionId"] in offered]
    assert chosen(written(rule(action, always=always)), request(options=options)) == option


@pytest.mark.parametrize(
    "line",
    [
        request(call="c1"),
        request(call=None),
        request(options=None),
        request(options=[None, 1, {"kind": ["allow_once"]}, {"kind": "allow_once", "optionId": 5}]),
        request(identity=None),
        request(identity={"x": 1}),
        request(identity=True),
        request()[:-3] + b"\n",
        b"[" + request().strip() + b"]\n",
        b'{"method": "session/request_permission", "params": []}\n',
        b'{"x": "session/request_permission \xff"}\n',
    ],
)
def test_what_is_no_proper_request_passes(written: Any, line: bytes) -> None:
    """Whatever a client makes of it."""
    assert sorted_(PermissionFilter(written(rule())), line) == (line, [])


@pytest.mark.parametrize("identity", ["7", "", 0, -1, 10**200, "\ud800"])
def test_the_answer_bears_the_requests_id(written: Any, identity: Any) -> None:
    """Of whatever type it is."""
    (answer,) = sorted_(PermissionFilter(written(rule())), request(identity=identity))[1]
    expected = "\ufffd" if identity == "\ud800" else identity
    assert json.loads(answer.line)["id"] == expected


# Bytes


@given(st.data())
def test_whatever_is_not_answered_passes_unchanged_however_it_is_cut(data: st.DataObject) -> None:
    """Lines of real agents, damaged ones and noise, in pieces of any size; only whole requests stay behind."""
    lines = data.draw(
        st.lists(
            st.one_of(
                st.just(request()),
                st.just(update(kind="read")),
                damaged("acp").map(lambda row: json.dumps(row).encode() + b"\n"),
                garbage.map(lambda value: json.dumps(value).encode() + b"\r\n"),
                st.binary(max_size=30),
            ),
            max_size=12,
        )
    )
    whole = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    desk = PermissionFilter(Policy(()))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    passed = b"".join(piece for part in pieces for piece, _ in desk.sort(part)) + b"".join(desk.rest())
    assert passed == whole


def test_requests_within_other_lines_are_taken_out_and_nothing_else(written: Any) -> None:
    """The lines around an answered request pass in their order, whatever the pieces."""
    rand = random.Random(1)
    lines = [b'{"a":1}\n', request(), b"\n", request(), update(kind="x"), b"rest without end"]
    whole = b"".join(lines)
    for _ in range(50):
        desk = PermissionFilter(written(rule()))
        cuts = sorted(rand.sample(range(len(whole)), 5))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        found = [item for piece in pieces for item in desk.sort(piece)]
        passed = b"".join(piece for piece, answer in found if answer is None) + b"".join(desk.rest())
        assert passed == b"".join(line for line in lines if line != request())
        assert [piece for piece, answer in found if answer is not None] == [request()] * 2


def test_a_line_beyond_the_limit_passes_while_it_comes(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not held, not read and not answered; the next one is."""
    monkeypatch.setattr(desks, "MAX_LINE_BYTES", 1000)
    desk = PermissionFilter(written(rule()))
    long = request({**CALL, "title": "x" * 3000})
    assert sorted_(desk, long[:900]) == (b"", [])
    assert sorted_(desk, long[900:2000]) == (long[:2000], [])
    assert sorted_(desk, long[2000:2500]) == (long[2000:2500], [])
    passed, answers = sorted_(desk, long[2500:] + request())
    assert passed == long[2500:] and len(answers) == 1


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_requests_of_real_agents_are_answered(written: Any, path: Path) -> None:
    """Every permission request in the recorded traffic has an option for allowing once."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    said = [row["msg"] for row in rows if row["dir"] == "a2c"]
    requests = [message for message in said if message.get("method") == "session/request_permission"]
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in said)
    answers = sorted_(PermissionFilter(written(rule())), lines)[1]
    assert [json.loads(answer.line)["id"] for answer in answers] == [message["id"] for message in requests]
    kinds = {option["optionId"]: option["kind"] for message in requests for option in message["params"]["options"]}
    assert {kinds[json.loads(answer.line)["result"]["outcome"]["optionId"]] for answer in answers} <= {"allow_once"}


# The file


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rule]\n", "policy.toml: is not TOML: .*line 1"),
        ("a = 1\n", "policy.toml: knows no 'a'"),
        ("[rule]\naction = 'ask'\n", "policy.toml: write each rule under"),
        ("rule = [1]\n", "policy.toml: write each rule under"),
        ("[[rule]]\n", "policy.toml, line 1, rule 1: action must be one of allow, ask, deny$"),
        ("\n\n[[rule]]\naction = 'alow'\n", "line 3, rule 1: action must be one of allow, ask, deny, not 'alow'"),
        (rule() + rule(tols="x"), "line 3, rule 2: knows no 'tols'; known are action, reason, always, tool"),
        (rule(title="regex:("), "rule 1: title is not a regular expression: "),
        (rule(path=[]), "rule 1: path must be a text or a list of texts"),
        (rule(tool=5), "rule 1: tool must be a text"),
        (rule(kind=["read", ""]), "rule 1: kind must be a text or a list of texts, none of them empty"),
        (rule(input__command=1), "rule 1: input must be a text"),
        (rule(input__a__b=[1]), "rule 1: input must be a text"),
        (rule(reason=1), "rule 1: reason must be a text"),
        (rule(always="yes"), "rule 1: reason must be a text and always must be true or false"),
        ("rule = [{action = 'no'}]\n", "policy.toml, rule 1: action"),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_problem(written: Any, text: str, problem: str) -> None:
    """The file, the line and the rule."""
    with pytest.raises(InvalidInputError, match=problem):
        written(text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Absent, a folder, or no text."""
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(InvalidInputError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="is not TOML"):
        load(tmp_path / "bytes")


@given(
    garbage, st.dictionaries(st.sampled_from(["tool_name", "kind", "title", "input", "locations", "content"]), garbage)
)
def test_no_request_is_too_odd_to_be_judged(input_: Any, told: dict[str, Any]) -> None:
    """Whatever an agent tells of a call, each filter has an answer."""
    asked = permission_query(codec.to_json({"input": input_, **told}))
    assert isinstance(asked, PermissionQuery)
    for name, make in FILTERS.items():
        for value in ("*", "regex:.*", ["a", "b"]):
            for action in ("allow", "deny"):
                assert make(value, action)(asked) in (True, False, None), name
    assert FILTERS["input"]({"a": {"b": "*"}}, "allow")(asked) in (True, False, None)
