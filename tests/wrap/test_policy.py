"""Policies: which rule matches a request, which option it chooses, and how a bad file is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.api.policy_file import read_policy
from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.rules.policy import FILTERS, PermissionQuery, Policy, permission_query
from callslip.wrap import permission_filter
from callslip.wrap.held_requests import HeldRequest
from callslip.wrap.permission_filter import PermissionFilter, PolicyAnswer
from tests.support.format_cases import CAPTURES, damaged, garbage

OPTIONS = [
    {"optionId": "A", "kind": "allow_always"},
    {"optionId": "a", "kind": "allow_once"},
    {"optionId": "r", "kind": "reject_once"},
    {"optionId": "R", "kind": "reject_always"},
]
CALL = {"toolCallId": "c1", "kind": "execute", "title": "ls", "rawInput": {"command": "ls -l", "deep": {"n": 1}}}


@pytest.fixture
def load_policy(tmp_path: Path) -> Any:
    """Return a function that writes a policy to a file and loads it."""

    def load_text(text: str) -> Policy:
        (tmp_path / "policy.toml").write_text(text)
        return read_policy(tmp_path / "policy.toml")

    return load_text


def rule_toml(action: str = "allow", **filters: Any) -> str:
    return f"[[rule]]\naction = {json.dumps(action)}\n" + "".join(
        f"{name.replace('__', '.')} = {json.dumps(value)}\n" for name, value in filters.items()
    )


def request_line(call: Any = CALL, options: Any = OPTIONS, request_id: Any = 7) -> bytes:
    params = {"sessionId": "s", "toolCall": call, "options": options}
    message = {"jsonrpc": "2.0", "id": request_id, "method": "session/request_permission", "params": params}
    return json.dumps(message).encode() + b"\n"


def update_line(**fields: Any) -> bytes:
    params = {"sessionId": "s", "update": {"sessionUpdate": "tool_call", "toolCallId": "c1", **fields}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode() + b"\n"


def split_output(filter_: PermissionFilter, data: bytes) -> tuple[bytes, list[PolicyAnswer]]:
    """Return the bytes that pass, and the answers."""
    passed: list[bytes] = []
    answers: list[PolicyAnswer] = []
    for part, action in filter_.split(data):
        assert not isinstance(action, HeldRequest)
        passed += [part] if action is None else []
        answers += [] if action is None else [action]
    return b"".join(passed), answers


def chosen_option(policy: Policy, *lines: bytes) -> str:
    """Return the option that answers the last of some lines, or "" if the client decides."""
    passed, answers = split_output(PermissionFilter(policy), b"".join(lines))
    if not answers:
        assert passed == b"".join(lines)
        return ""
    (answer,) = answers
    message = json.loads(answer.line)
    assert message["id"] == 7
    return message["result"]["outcome"]["optionId"]


# Filters


@pytest.mark.parametrize(
    ("filters", "matches"),
    [
        ({}, True),
        ({"kind": "execute"}, True),
        ({"kind": ["read", "exec*"]}, True),
        ({"kind": "exec"}, False),
        ({"title": "l?*"}, True),
        ({"title": "l?"}, False),
        ({"title": "L*"}, False),
        ({"title": "regex:l.( -l)?|x"}, True),
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
def test_a_rule_matches_if_each_of_its_filters_does(load_policy: Any, filters: dict[str, Any], matches: bool) -> None:
    """Patterns match the complete text. A filter does not match an unknown field."""
    assert chosen_option(load_policy(rule_toml(**filters)), request_line()) == ("a" if matches else "")


@pytest.mark.parametrize(
    ("command", "matches"),
    [
        (["/bin/bash", "-lc", "git status"], True),
        (["git", "status"], True),
        ("git status", True),
        ("/bin/bash -lc 'git status'", False),
        (["git", 1], False),
        ({"x": 1}, False),
        (None, False),
    ],
)
def test_a_list_of_words_is_matched_as_one_line(load_policy: Any, command: Any, matches: bool) -> None:
    """Agents send commands as a string or as a list of words, of which a shell and its option are omitted."""
    policy = load_policy(rule_toml(input__command="git *"))
    assert bool(chosen_option(policy, request_line({"toolCallId": "c1", "rawInput": {"command": command}}))) is matches


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
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
def test_paths_are_matched_folder_by_folder(
    load_policy: Any, monkeypatch: pytest.MonkeyPatch, pattern: str, path: str, matches: bool
) -> None:
    """`*` ends at a slash, `**` does not, and `..` is resolved."""
    monkeypatch.setenv("HOME", "/home/someone")
    call = {"toolCallId": "c1", "locations": [{"path": path}]}
    assert bool(chosen_option(load_policy(rule_toml(path=pattern)), request_line(call))) is matches


def test_allow_needs_every_path_to_match_and_deny_any_path(load_policy: Any) -> None:
    """A call with an allowed and another path is not allowed."""
    call = {
        "toolCallId": "c1",
        "locations": [{"path": "/p/a"}],
        "content": [{"type": "diff", "path": "/etc/b", "newText": "x"}],
    }
    assert chosen_option(load_policy(rule_toml(path="/p/**")), request_line(call)) == ""
    assert chosen_option(load_policy(rule_toml(path=["/p/**", "/etc/*"])), request_line(call)) == "a"
    assert chosen_option(load_policy(rule_toml("deny", path="/etc/**")), request_line(call)) == "r"


def test_the_first_rule_that_matches_decides(load_policy: Any) -> None:
    """Later rules are ignored, also after `ask`."""
    assert chosen_option(load_policy(rule_toml("deny", kind="execute") + rule_toml("allow")), request_line()) == "r"
    assert chosen_option(load_policy(rule_toml("ask", kind="execute") + rule_toml("allow")), request_line()) == ""
    assert chosen_option(load_policy(rule_toml("deny", kind="read") + rule_toml("allow")), request_line()) == "a"
    assert chosen_option(load_policy(""), request_line()) == ""


def test_a_tool_name_without_its_server_prefix_matches_only_to_deny(load_policy: Any) -> None:
    """Any server may have a tool of that name. The name may come in an update before the request."""
    update = update_line(_meta={"claudeCode": {"toolName": "mcp__fs__Read"}}, title="Read it")
    request = request_line({"toolCallId": "c1"})
    for name in ("mcp__fs__Read", "mcp__fs__*"):
        assert chosen_option(load_policy(rule_toml(tool=name, title="Read it")), update, request) == "a"
        assert chosen_option(load_policy(rule_toml("deny", tool=name, title="Read it")), update, request) == "r"
    assert chosen_option(load_policy(rule_toml("deny", tool="Read")), update, request) == "r"
    assert chosen_option(load_policy(rule_toml(tool="Read")), update, request) == "", (
        "any server may have a tool of that name"
    )
    assert chosen_option(load_policy(rule_toml(tool="Read")), request) == ""


def test_fields_of_an_earlier_call_with_the_same_id_do_not_count(load_policy: Any) -> None:
    """After a call starts again or ends, its fields allow nothing."""
    policy, request = load_policy(rule_toml(input__command="ls")), request_line({"toolCallId": "c1"})
    update = update_line(rawInput={"command": "ls"})
    assert chosen_option(policy, update, request) == "a"
    assert chosen_option(policy, update, update_line(title="another"), request) == ""
    assert chosen_option(policy, update, update_line(status="completed"), request) == ""
    assert chosen_option(policy, update, request_line({"toolCallId": "c1", "rawInput": {"command": "rm"}})) == ""
    assert chosen_option(policy, update, request_line({"toolCallId": "c1", "rawInput": None})) == ""


def test_the_number_of_tracked_calls_is_limited(load_policy: Any) -> None:
    """An agent that never ends its calls does not exhaust the memory."""
    filter_ = PermissionFilter(load_policy(rule_toml(kind="read")))
    for number in range(3 * permission_filter.MAX_TRACKED_CALLS):
        split_output(filter_, update_line(kind="read").replace(b'"c1"', f'"c{number}"'.encode()))
    assert len(filter_._calls) == permission_filter.MAX_TRACKED_CALLS
    assert not split_output(filter_, request_line({"toolCallId": "c1"}))[1]
    assert split_output(filter_, request_line({"toolCallId": f"c{3 * permission_filter.MAX_TRACKED_CALLS - 1}"}))[1]


def test_a_request_about_a_command_is_matched_by_its_text(load_policy: Any) -> None:
    """In draft 2 a request may be about a command without a call."""
    subject = {"type": "command", "command": "git status", "cwd": "/p"}
    params = {"sessionId": "s", "title": "May I?", "subject": subject, "options": OPTIONS}
    message = {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": params}
    line = json.dumps(message).encode() + b"\n"
    assert chosen_option(load_policy(rule_toml(kind="execute", input__command="git status")), line) == "a"
    assert chosen_option(load_policy(rule_toml(input__command="git push")), line) == ""


# Hostile agents


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
def test_a_missing_path_does_not_bypass_a_rule_about_paths(load_policy: Any, call: Any) -> None:
    """A later rule does not allow a call that an earlier one might deny; the client decides."""
    policy = load_policy(rule_toml("deny", path="/etc/**") + rule_toml("allow", kind="read"))
    assert chosen_option(policy, request_line({"toolCallId": "c1", **call})) == ""
    assert chosen_option(load_policy(rule_toml("allow", path="**")), request_line({"toolCallId": "c1", **call})) == ""


@pytest.mark.parametrize("path", ["//etc/passwd", "///etc/passwd", "/p/../etc/passwd", "/ETC/passwd", "/etc/./passwd"])
def test_a_denied_path_is_denied_in_every_spelling(load_policy: Any, path: str) -> None:
    """Spellings are more slashes, `..`, or letters in another case, which name the same file on some file systems."""
    policy = load_policy(rule_toml("deny", path="/etc/**") + rule_toml("allow"))
    assert chosen_option(policy, request_line({"toolCallId": "c1", "locations": [{"path": path}]})) == "r"


def test_links_are_resolved_before_a_path_is_matched(load_policy: Any, tmp_path: Path) -> None:
    """A link in an allowed folder may lead out of it. A pattern may name a folder by a link."""
    (tmp_path / "p").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "p" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "home").symlink_to(tmp_path / "p")

    def request_for(path: str) -> bytes:
        return request_line({"toolCallId": "c1", "locations": [{"path": f"{tmp_path}/{path}"}]})

    inside = load_policy(rule_toml(path=f"{tmp_path}/p/**"))
    assert [chosen_option(inside, request_for(path)) for path in ("p/a", "p/link/key", "p/link/../a", "home/a")] == [
        "a",
        "",
        "",
        "",
    ]
    assert chosen_option(load_policy(rule_toml(path=f"{tmp_path}/home/**")), request_for("home/a")) == "a"
    assert (
        chosen_option(
            load_policy(rule_toml("deny", path=f"{tmp_path}/secret/**") + rule_toml()), request_for("p/link/key")
        )
        == "r"
    )


def test_composed_and_decomposed_accents_match(load_policy: Any) -> None:
    """A composed letter and a letter with a combining accent are the same name for file systems."""
    policy = load_policy(rule_toml("deny", path="/p/\u00e9/**") + rule_toml())
    assert chosen_option(policy, request_line({"toolCallId": "c1", "locations": [{"path": "/p/e\u0301/x"}]})) == "r"


@pytest.mark.parametrize("call", [{}, {"rawInput": None}, {"rawInput": "rm -rf /"}, {"rawInput": {"command": None}}])
def test_a_missing_input_does_not_bypass_a_rule_about_it(load_policy: Any, call: Any) -> None:
    """An object without that member is different: the member is known to be absent."""
    policy = load_policy(rule_toml("deny", input__command="*rm*") + rule_toml("allow", kind="execute"))
    assert chosen_option(policy, request_line({"toolCallId": "c1", "kind": "execute", **call})) == ""
    without_command = request_line({"toolCallId": "c1", "kind": "execute", "rawInput": {"path": "/"}})
    assert chosen_option(policy, without_command) == "a"


@pytest.mark.parametrize("filters", [{"tool": "Bash"}, {"kind": "execute"}, {"title": "rm*"}])
def test_a_missing_text_does_not_bypass_a_rule_about_it(load_policy: Any, filters: dict[str, str]) -> None:
    """This holds for `ask` too. A rule with another filter that does not match is skipped."""
    for action in ("deny", "ask"):
        assert (
            chosen_option(load_policy(rule_toml(action, **filters) + rule_toml()), request_line({"toolCallId": "c1"}))
            == ""
        )
        other = load_policy(rule_toml(action, **filters, input__x="y") + rule_toml())
        assert chosen_option(other, request_line({"toolCallId": "c1", "rawInput": {}})) == "a"


@pytest.mark.parametrize(
    "line",
    [
        update_line(rawInput={"command": "rm"}).replace(b"tool_call", b"tool\\u005fcall"),
        update_line(rawInput={"command": "rm"})[:-2] + b"\n",
        update_line(rawInput={"command": "rm", "x": "y" * 5000}),
    ],
)
def test_a_line_that_is_not_read_clears_the_tracked_calls(
    load_policy: Any, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """It is too long, not JSON, or hides a word in an escape, and may be an update of any call."""
    monkeypatch.setattr(permission_filter, "MAX_LINE_BYTES", 2000)
    filter_, request = PermissionFilter(load_policy(rule_toml(input__command="ls"))), request_line({"toolCallId": "c1"})
    split_output(filter_, update_line(rawInput={"command": "ls"}))
    for cut in (line[:2500], line[2500:]):
        split_output(filter_, cut)
    assert split_output(filter_, request) == (request, [])


def test_the_end_of_a_line_that_is_too_long_is_no_request(load_policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes like the rest of its line."""
    monkeypatch.setattr(permission_filter, "MAX_LINE_BYTES", 1000)
    filter_ = PermissionFilter(load_policy(rule_toml()))
    split_output(filter_, b"x" * 2000)
    assert split_output(filter_, request_line()) == (request_line(), [])


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
def test_an_answer_is_an_option_of_the_agent_for_one_call(
    load_policy: Any, action: str, always: bool, offered: str, option: str
) -> None:
    """An option that the agent remembers is chosen only with `always`. Without an option the client decides."""
    options = [item for item in OPTIONS if item["optionId"] in offered]
    assert chosen_option(load_policy(rule_toml(action, always=always)), request_line(options=options)) == option


@pytest.mark.parametrize(
    "line",
    [
        request_line(call="c1"),
        request_line(call=None),
        request_line(options=None),
        request_line(options=[None, 1, {"kind": ["allow_once"]}, {"kind": "allow_once", "optionId": 5}]),
        request_line(request_id=None),
        request_line(request_id={"x": 1}),
        request_line(request_id=True),
        request_line()[:-3] + b"\n",
        b"[" + request_line().strip() + b"]\n",
        b'{"method": "session/request_permission", "params": []}\n',
        b'{"x": "session/request_permission \xff"}\n',
    ],
)
def test_a_malformed_request_passes(load_policy: Any, line: bytes) -> None:
    """The client decides what to do with it."""
    assert split_output(PermissionFilter(load_policy(rule_toml())), line) == (line, [])


@pytest.mark.parametrize("request_id", ["7", "", 0, -1, 10**200, "\ud800"])
def test_the_answer_has_the_id_of_the_request(load_policy: Any, request_id: Any) -> None:
    """The id may be any number or text."""
    (answer,) = split_output(PermissionFilter(load_policy(rule_toml())), request_line(request_id=request_id))[1]
    expected = "\ufffd" if request_id == "\ud800" else request_id
    assert json.loads(answer.line)["id"] == expected


# Bytes


@given(st.data())
def test_output_without_answered_requests_passes_unchanged(data: st.DataObject) -> None:
    """Lines of real agents, damaged lines and random bytes pass in chunks of any size."""
    lines = data.draw(
        st.lists(
            st.one_of(
                st.just(request_line()),
                st.just(update_line(kind="read")),
                damaged("acp").map(lambda row: json.dumps(row).encode() + b"\n"),
                garbage.map(lambda value: json.dumps(value).encode() + b"\r\n"),
                st.binary(max_size=30),
            ),
            max_size=12,
        )
    )
    output = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=6)))
    filter_ = PermissionFilter(Policy(()))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    passed = b"".join(piece for part in pieces for piece, _ in filter_.split(part)) + b"".join(filter_.flush())
    assert passed == output


def test_only_requests_are_taken_out(load_policy: Any) -> None:
    """The lines around an answered request pass in order, in chunks of any size."""
    rand = random.Random(1)
    lines = [b'{"a":1}\n', request_line(), b"\n", request_line(), update_line(kind="x"), b"rest without end"]
    output = b"".join(lines)
    for _ in range(50):
        filter_ = PermissionFilter(load_policy(rule_toml()))
        cuts = sorted(rand.sample(range(len(output)), 5))
        pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
        parts = [item for piece in pieces for item in filter_.split(piece)]
        passed = b"".join(piece for piece, answer in parts if answer is None) + b"".join(filter_.flush())
        assert passed == b"".join(line for line in lines if line != request_line())
        assert [piece for piece, answer in parts if answer is not None] == [request_line()] * 2


def test_a_line_beyond_the_limit_passes_in_parts(load_policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not buffered, read or answered; the next line is."""
    monkeypatch.setattr(permission_filter, "MAX_LINE_BYTES", 1000)
    filter_ = PermissionFilter(load_policy(rule_toml()))
    long = request_line({**CALL, "title": "x" * 3000})
    assert split_output(filter_, long[:900]) == (b"", [])
    assert split_output(filter_, long[900:2000]) == (long[:2000], [])
    assert split_output(filter_, long[2000:2500]) == (long[2000:2500], [])
    passed, answers = split_output(filter_, long[2500:] + request_line())
    assert passed == long[2500:] and len(answers) == 1


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_requests_of_real_agents_are_answered(load_policy: Any, path: Path) -> None:
    """Every permission request in the recorded traffic has an option that allows one call."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    messages = [row["msg"] for row in rows if row["dir"] == "a2c"]
    requests = [message for message in messages if message.get("method") == "session/request_permission"]
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    answers = split_output(PermissionFilter(load_policy(rule_toml())), lines)[1]
    assert [json.loads(answer.line)["id"] for answer in answers] == [message["id"] for message in requests]
    kinds = {option["optionId"]: option["kind"] for message in requests for option in message["params"]["options"]}
    assert {kinds[json.loads(answer.line)["result"]["outcome"]["optionId"]] for answer in answers} <= {"allow_once"}


# The file


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rule]\n", "policy.toml: is not TOML: .*line 1"),
        ("a = 1\n", "policy.toml: unknown key 'a'"),
        ("[rule]\naction = 'ask'\n", "policy.toml: write each rule under"),
        ("rule = [1]\n", "policy.toml: write each rule under"),
        ("[[rule]]\n", "policy.toml, line 1, rule 1: action must be one of allow, ask, deny$"),
        ("\n\n[[rule]]\naction = 'alow'\n", "line 3, rule 1: action must be one of allow, ask, deny, got 'alow'"),
        (
            rule_toml() + rule_toml(tols="x"),
            "line 3, rule 2: unknown key 'tols'; the keys are action, reason, always, tool",
        ),
        (rule_toml(title="regex:("), "rule 1: title is not a regular expression: "),
        (rule_toml(path=[]), "rule 1: path must be a string or a list of strings"),
        (rule_toml(tool=5), "rule 1: tool must be a string"),
        (rule_toml(kind=["read", ""]), "rule 1: kind must be a string or a list of strings, none of them empty"),
        (rule_toml(input__command=1), "rule 1: input must be a string"),
        (rule_toml(input__a__b=[1]), "rule 1: input must be a string"),
        (rule_toml(reason=1), "rule 1: reason must be a string"),
        (rule_toml(always="yes"), "rule 1: reason must be a string and always must be true or false"),
        ("rule = [{action = 'no'}]\n", "policy.toml, rule 1: action"),
    ],
)
def test_a_bad_file_is_refused_with_the_line_and_the_problem(load_policy: Any, text: str, problem: str) -> None:
    """The message has the file, the line and the rule."""
    with pytest.raises(InvalidInputError, match=problem):
        load_policy(text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """It does not exist, is a folder, or is not UTF-8."""
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        read_policy(tmp_path / "absent.toml")
    with pytest.raises(InvalidInputError, match="cannot be read: Is a directory"):
        read_policy(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="is not TOML"):
        read_policy(tmp_path / "bytes")


@given(
    garbage, st.dictionaries(st.sampled_from(["tool_name", "kind", "title", "input", "locations", "content"]), garbage)
)
def test_every_filter_has_a_result_for_any_call(input_: Any, fields: dict[str, Any]) -> None:
    """An agent may send any JSON in the fields of a call."""
    query = permission_query(codec.to_json({"input": input_, **fields}))
    assert isinstance(query, PermissionQuery)
    for name, make in FILTERS.items():
        for value in ("*", "regex:.*", ["a", "b"]):
            for action in ("allow", "deny"):
                assert make(value, action)(query) in (True, False, None), name
    assert FILTERS["input"]({"a": {"b": "*"}}, "allow")(query) in (True, False, None)


@pytest.mark.parametrize("command", ["callslip approve @last", "cat .claude/settings.json"])
def test_a_policy_does_not_allow_calls_about_callslip(load_policy: Any, command: str) -> None:
    """RUL5: a call about Callslip's command line or an agent's settings goes to a person. It can be denied."""
    call = {**CALL, "title": "x", "rawInput": {"command": command}}
    assert chosen_option(load_policy(rule_toml("allow", kind="execute")), request_line(call)) == ""
    assert chosen_option(load_policy(rule_toml("deny", kind="execute")), request_line(call)) == "r"
    (held,) = [action for _, action in PermissionFilter(load_policy(""), holds=True).split(request_line(call))]
    assert isinstance(held, HeldRequest) and not held.needs_person
    policy = load_policy(rule_toml("allow", kind="execute"))
    (held,) = [action for _, action in PermissionFilter(policy, holds=True).split(request_line(call))]
    assert isinstance(held, HeldRequest) and held.needs_person
