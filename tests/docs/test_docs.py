"""The documents are correct: their paths and commands exist, and their examples run."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from callslip.rules.lifecycle import TRANSITIONS
from tests.support.doc_examples import (
    DOCS,
    LINK,
    OWN_CODE_GUIDES,
    ROOT,
    find_blocks,
    find_commands,
    find_paths,
    find_unknown_command,
    heading_anchors,
    link_exists,
    matches_output,
    path_exists,
    run_document,
    strip_blocks,
)

IDS = [str(path.relative_to(ROOT)) for path in DOCS]
GUIDES = [ROOT / "README.md", ROOT / "docs" / "upgrading.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
MAX_GUIDE_LINES = 220


@pytest.mark.parametrize("path", DOCS, ids=IDS)
def test_paths_named_in_the_docs_exist(path: Path) -> None:
    """A path in backticks exists, with the test that it names; a pattern matches a file."""
    assert not [name for name in sorted(find_paths(path.read_text("utf-8"))) if not path_exists(name)]


@pytest.mark.parametrize("path", DOCS, ids=IDS)
def test_links_between_the_docs_exist(path: Path) -> None:
    """A relative link or picture names a file that exists, with the heading in the link."""
    links = LINK.findall(strip_blocks(path.read_text("utf-8")))
    assert not [link for link in links if not link_exists(path, *link)]


@pytest.mark.parametrize("path", DOCS, ids=IDS)
def test_commands_shown_in_the_docs_exist(path: Path) -> None:
    """Each `callslip <command>` is a command of the program."""
    commands = list(find_commands(path.read_text("utf-8")))
    if commands:
        from callslip.cli import main

        assert isinstance(main, click.Group), "callslip.cli.main is the click group"
        assert not [shlex.join(words) for words in commands if find_unknown_command(main, words)]


@pytest.mark.parametrize("path", DOCS, ids=IDS)
def test_blocks_are_well_formed(path: Path) -> None:
    """Python, TOML and JSON in the docs can be parsed, including fragments."""
    for block in find_blocks(path.read_text("utf-8")):
        if block.language == "python":
            compile(block.body, f"{path.name}:{block.line}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        elif block.language == "toml":
            tomllib.loads(block.body)
        elif block.language == "json":
            json.loads(block.body)


@pytest.mark.parametrize("path", GUIDES, ids=[path.name for path in GUIDES])
def test_all_code_in_a_guide_is_run(path: Path) -> None:
    """Code and commands are examples, files of examples, or fragments of a named test."""
    text = path.read_text("utf-8")
    code = [
        block for block in find_blocks(text) if block.language in ("python", "js", "ts", "tsx", "console", "toml", "sh")
    ]
    assert not [block.info for block in code if block.role not in ("example", "file", "fragment")]
    assert not [block.info for block in code if block.role in ("file", "fragment") and not block.name]
    assert path.parent.name != "guides" or len(text.splitlines()) <= MAX_GUIDE_LINES


def test_examples_print_what_the_docs_say(tmp_path: Path) -> None:
    """The examples of each document run in order in a separate folder and print what it shows, except for ids."""

    def run_examples(path: Path) -> list[str]:
        name = str(path.relative_to(ROOT))
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir()
        return [f"{name}, {problem}" for problem in run_document(path.read_text("utf-8"), folder)]

    with ThreadPoolExecutor(4) as pool:
        paths = [path for path in DOCS if path not in OWN_CODE_GUIDES]  # test_own_code_guides.py runs those.
        problems = [problem for document_problems in pool.map(run_examples, paths) for problem in document_problems]
    assert not problems, "\n".join(problems)


def test_the_generated_documents_are_up_to_date() -> None:
    """Commands, events, entries, routes and the lifecycle are those of the code; `make docs` writes them."""
    check = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    lifecycle = (ROOT / "docs" / "lifecycle.md").read_text("utf-8")
    assert all(f" --> {state} : " in lifecycle for state in TRANSITIONS if state != "none")


def test_the_upgrade_guide_has_its_steps_in_order() -> None:
    """S1.8: server first, then readers, then verify; its commands run with the other examples."""
    text = (ROOT / "docs" / "upgrading.md").read_text("utf-8")
    positions = [text.index(f"\n## {head}") for head in ("1. The server", "2. The readers", "3. Verify")]
    assert positions == sorted(positions)
    console = next(block.body for block in find_blocks(text[positions[-1] :]) if block.info == "console example")
    assert "callslip doctor" in console and "callslip verify" in console


def test_every_document_is_in_the_index() -> None:
    """docs/README.md links to all others."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link, _ in LINK.findall(index.read_text("utf-8"))}
    assert set(DOCS) - linked == {index}


SAMPLE = """See `src/callslip/rules/fold.py`, `tests/docs/test_docs.py::test_x`,
`a/b` and `callslip --db sqlite:///x.db show s`.

```console
$ callslip ls | callslip import --format acp -
$ CALLSLIP_DB=x callslip admin token # callslip nonsense
```

```text file a.txt
done 5 ms ago
```

```python example
print("exec_0123456789ab")
```

```text
exec_ba9876543210
```

```python fragment tests/docs/test_http_walk.py::parse_steps
await something
```

```console example
$ cat a.txt; cat a.txt
done 7 s ago
...
$ cat a.txt
nothing done
```
"""


def test_paths_commands_and_examples_are_found() -> None:
    """Paths, commands, links, headings and examples of a small document are found."""
    assert find_paths(SAMPLE) == {
        "src/callslip/rules/fold.py",
        "tests/docs/test_docs.py::test_x",
        "tests/docs/test_http_walk.py::parse_steps",
    }
    assert [path_exists(name) for name in sorted(find_paths(SAMPLE))] == [True, False, True]
    assert [words[0] for words in find_commands(SAMPLE)] == ["ls", "import", "admin", "--db"]
    assert LINK.findall('[a](b.md#c) [d](#e) [f](https://g) <img src="h.png">') == [
        ("b.md", "c"),
        ("", "e"),
        ("h.png", ""),
    ]
    assert heading_anchors("## Around it: `callslip wrap --mcp`\n```\n# no\n```\n") == {"around-it-callslip-wrap---mcp"}
    assert [(block.info, block.output) for block in find_blocks(SAMPLE)][2] == ("python example", "exec_ba9876543210\n")


def test_output_of_examples_is_compared(tmp_path: Path) -> None:
    """Only the step of a document that prints something else is reported."""
    (problem,) = run_document(SAMPLE, tmp_path)
    assert problem.startswith("line 25: cat a.txt\nstatus 0, printed:\ndone 5 ms ago")
    assert matches_output("a\nb\nc\n", "a\n...\nc\n", {}) and not matches_output("a\nb\nc\n", "a\n...\nd\n", {})
    assert not matches_output("a", "", {})


def test_ids_are_equal_where_a_document_shows_them_equal() -> None:
    """Equal ids in a document must be equal in the output, in all steps; different ones must differ."""
    one, two, three = (f"exec_{digit * 12}" for digit in "123")
    printed_ids: dict[str, str] = {}
    assert matches_output(f"{two} {two}", f"{one} {one}", printed_ids)
    assert not matches_output(f"{two} {three}", f"{one} {one}", {})
    assert matches_output(f"is {two}", f"is {one}", printed_ids)
    assert not matches_output(f"is {three}", f"is {one}", printed_ids)
    assert matches_output(f"{three}", f"{two}", printed_ids)
    assert not matches_output(f"{two}", f"{three}", printed_ids)


def test_unknown_commands_are_found() -> None:
    """Options before the command are skipped with their values; groups are searched."""
    token = click.Command("token")
    admin = click.Group("admin", commands=[token])
    main = click.Group("callslip", commands=[admin, click.Command("ls")], params=[click.Option(["--db"])])
    assert find_unknown_command(main, ["--db", "x", "ls", "nonsense"]) is None
    assert find_unknown_command(main, ["admin", "token"]) is None
    assert find_unknown_command(main, ["admin", "tokens"]) == "tokens"
    assert find_unknown_command(main, ["--db", "ls", "list"]) == "list"
    assert find_unknown_command(main, ["COMMAND"]) is None
