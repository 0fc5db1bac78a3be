"""Decide whether a simple command can run another program, or code, that is written in its own words.

`git *` in a rule means what git does. It does not mean `git -c core.pager='sh -c ...' log`, where git only starts
something else, nor `sort -o ~/.bashrc`, which is a redirection in another form. A rule with wildcards does not allow
such commands. The lists cannot be complete: a rule with wildcards trusts the program that it names, with its settings,
hooks and plugins. What is listed is checked widely: if an ordinary argument looks like an option, a person is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from callslip.rules.shell_command import Word


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


class _Options:
    """Options of a program: `--name` also abbreviated or with other hyphens, `-x` also within `-axb`, and `-word`."""

    def __init__(self, text: str) -> None:
        options = text.split()
        self._names = [self._plain(option) for option in options if option.startswith("--")]
        self._letters = {option[1] for option in options if len(option) == 2}
        self._words = frozenset(options)

    @staticmethod
    def _plain(option: str) -> str:
        return option.replace("-", "").lower()

    def has(self, word: str) -> bool:
        """Return whether a word is one of the options, or may be one."""
        name = word.partition("=")[0]
        plain = self._plain(name.partition(".")[0])  # As in --config.name=value.
        if name in self._words or not word.startswith("-"):
            return name in self._words
        has_name = len(plain) > (0 if word.startswith("--") else 2)  # Some programs read -name as --name.
        if has_name and name not in _FULL_NAMES and any(other.startswith(plain) for other in self._names):
            return True
        return not word.startswith("--") and not self._letters.isdisjoint(word[1:])


# Programs that run a command from their arguments: shells, builtins of shells, and prefixes such as sudo.
_SHELLS = _names("""
ash bash busybox cmd coreutils csh dash elvish fish ksh mksh nu oksh pdksh posh powershell pwsh rbash sash sh tcsh
toybox wsl xonsh yash zsh
""")
_BUILTINS = _names("""
- . alias autoload bind builtin command compgen complete coproc declare emulate enable eval exec export fc functions
getopts hash history jobs let local mapfile nocorrect noglob read readarray readonly repeat sched set setopt shopt
source time trap typeset unalias unset unsetopt vared zle zmodload
""")
_PREFIXES = _names("""
abduco adb alacritty ansible ansible-playbook arch at autossh aws-vault batch bpftrace bunx bwrap byobu caffeinate
capsh ccache chamber choom chpst chroot chrt concurrently corepack cpulimit crontab cross-env daemonize dbus-launch
dbus-run-session direnv distcc doas dotenv dtach dtruss dumb-init dzdo entr env envdir expect fakechroot fakeroot
firejail flock foreman forever gdb gio gnome-terminal gosu guix heaptrack honcho hyperfine i386 ionice kernprof kitty
knife konsole ksu launchctl ld.so linux32 linux64 lldb logsave ltrace memray mosh mpiexec mpirun mprof multitime nc
ncat netcat newgrp nice nix nix-build nix-env nix-instantiate nix-shell nodemon nohup npx nq nsenter numactl open
openvt osascript parallel perf pipx pkexec pm2 prlimit proot proxychains proxychains4 pssh puppet py-spy rlogin rlwrap
rr rsh run-mailcap run-parts runuser s6-setuidgid salt sbatch scalene sccache scp screen script scriptreplay setarch
setlock setpriv setsid sftp sg slogin socat socket softlimit srun ssh ssh-agent sshpass start-stop-daemon stdbuf
strace su su-exec sudo sudoedit systemd-cat systemd-inhibit systemd-run taskset telnet timeout tini tmate tmux torify
torsocks truss tsocks tsp uftrace unbuffer unshare uvx vagrant valgrind viztracer watch watchexec winpty with-contenv
x-terminal-emulator x86_64 xargs xcrun xdg-open xterm xvfb-run zellij
""")
_WRAPPERS = _SHELLS | _BUILTINS | _PREFIXES

# Programs that run code, or a shell from inside: interpreters, editors, pagers, clients of databases.
_INTERPRETERS = _names("""
bpython bzless celery clisp clj clojure code codium composite conjure convert cpan cpanm crash csi cursor cython d8 dc
debugfs deno dialog dotnet-script duckdb dvips ecl ed editor electron elinks elixir emacs emacsclient erb erl escript
evim ex exiftool flask fsi ftp fzf ghci gm gnuplot groff groovy gs guile gunicorn gvim gvimdiff helix hx hypercorn
identify iex info ipython irb java jjs joe jrunscript jshell julia jupyter kak kotlin kotlinc latex latexmk ldd lein
less lftp links lua luajit lualatex luatex lynx m4 magick mail mailx man mariadb matlab maxima mc mcedit micro mogrify
mongo mongosh mono montage more most msbuild msfconsole msgfilter mutt mysql nano ncftp newlisp node nodejs nroff nvim
ocaml octave pager pdb pdflatex pdftex perl perldoc php pico pry psql psysh pypy python pythonw qjs r racket rails
ranger red rgvim rscript ruby runghc runhaskell rview rvim sage sbcl scala scanmem sensible-browser sensible-editor
sensible-pager sk slsh smbclient sqlite stack subl swift tasksh tclkit tclsh tex texlua troff ts-node tsx utop uvicorn
vi view vim vimdiff vimtutor w3m wine wish xelatex xetex xzless yelp zless zmore
""")

# Options of programs that are otherwise harmless. Most start a program or load code; some write to a file.
_OPTIONS = {
    "ack ag": "--pager --ackrc --output",
    "ant": "-f -file -buildfile -D -lib",
    "apt apt-get apt-cache aptitude": "-o --option -c --config-file",
    "aria2c": "--on-download-start --on-download-complete --on-download-error --on-bt-download-complete --conf-path",
    "asciidoctor rspec": "-r --require -I --options",
    "bat batcat delta": "--pager --diff-so-fancy --config-file",
    "bazel bazelisk": "--output_base --override_repository --override_module --shell_executable --host_jvm_args"
    " --install_base --server_javabase --action_env --repo_env --crosstool_top --extra_toolchains",
    "bun": "-r --preload --require --import --cwd -c --config -e --eval -p --print",
    "bundle bundler": "-r --gemfile",
    "cargo": "--config -Z --manifest-path -C",
    "composer": "-d --working-dir",
    "coverage": "--rcfile",
    "cpio": "--rsh-command --rmt-command -F",
    "ctest meson": "-S --build-and-test --wrapper --setup",
    "curl": "-o -O --output --output-dir --remote-name --remote-name-all -K --config -D --dump-header -c --cookie-jar"
    " --trace --trace-ascii --stderr --libcurl --engine --etag-save --hsts --alt-svc -w --write-out --unix-socket"
    " --abstract-unix-socket",
    "django-admin": "--settings --pythonpath",
    "doit": "-f --file -d --dir",
    "dpkg": "--pre-invoke --post-invoke --status-logger --admindir --root",
    "eslint": "-c --config --rulesdir --resolve-plugins-relative-to --plugin --parser -f --format -o --output-file",
    "fd fdfind": "-x --exec -X --exec-batch",
    "flake8 pylint mypy pyright": "--config --config-file --append-config --rcfile --init-hook --load-plugins"
    " --python-executable --pythonpath --plugin --enable-extensions --output --output-file --junit-xml --html-report"
    " --txt-report --install-types",
    "gpg gpg2": "-o --output --agent-program --dirmngr-program --photo-viewer --exec-path --options --homedir"
    " --keyserver-options --pinentry-program",
    "gradle gradlew": "-I --init-script -b --build-file -c --settings-file -p --project-dir -D --system-prop"
    " --include-build --gradle-user-home -g",
    "helm kubectl oc": "--kubeconfig --post-renderer --plugins --output-directory",
    "hg": "--config --cwd -R --repository --program",
    "iconv shuf tree": "-o --output",
    "install": "-s --strip --strip-program",
    "jest vitest mocha ava tap cypress playwright": "-c --config -r --require --import --loader --rootDir --root"
    " --globalSetup --globalTeardown --setupFiles --setupFilesAfterEnv --runner --testRunner --reporters --reporter"
    " --transform --resolver --env --environment --file --preset --outputFile --node-option --testEnvironment"
    " --testSequencer --testResultsProcessor --coverageReporters --projects --project --filter --modulePaths --roots"
    " --moduleNameMapper --prettierPath --snapshotSerializers --watchPlugins --config-file --browser --ui -R -u -P",
    "jj": "--config --config-toml --config-file -R --repository --tool",
    "just": "-f --justfile -d --working-directory --shell --shell-arg -c --command -e --edit --set --chooser",
    "mvn mvnw": "-f --file -s --settings -gs --global-settings -t --toolchains -D --define",
    "ninja samu": "-f -C -t",
    "nmap": "--script --interactive --datadir -o --stylesheet",
    "nox tox": "-f --noxfile -c --conf -x --override --root --workdir",
    "npm pnpm yarn": "--prefix -C --dir --cwd --script-shell --node-options --shell --shell-emulator --userconfig"
    " --globalconfig --git --editor --viewer --browser -c --call --package --init-module --config --modules-folder"
    " --use-yarnrc --require --import --loader --globalSetup --globalTeardown --setupFiles --setupFilesAfterEnv"
    " --runner --testRunner --testEnvironment --transform --resolver --reporters --rootDir --preset",
    "pacman yum dnf zypper": "--config -c --hookdir --gpgdir --dbpath --root --installroot --setopt",
    "pandoc": "-F --filter -L --lua-filter --pdf-engine -o --output --defaults -d --extract-media --data-dir",
    "patch": "-o --output -e --ed -r",
    "phpcs phpcbf": "--standard --runtime-set",
    "phpstan psalm": "-a --autoload-file -c",
    "phpunit": "--bootstrap -c --configuration --prepend --printer --extensions",
    "pip": "--python --log --config-settings",
    "pre-commit": "-c --config",
    "prettier rollup webpack vite stylelint": "-c --config --plugin --require",
    "pytest py.test": "-p -c --config-file --rootdir --basetemp --pdbcls -o --override-ini --pastebin --confcutdir"
    " --log-file --junit-xml --junitxml --html --debug --report-log --cov-config --tx --px --ds --dc",
    "rake": "-f --rakefile -r --require -e --execute -E --execute-continue -p --execute-print -I --libdir",
    "rg": "--pre --pre-glob --hostname-bin",
    "rpm rpmbuild rpmquery rpmverify": "-E --eval -D --define --pipe --rcfile --macros --load",
    "rsync": "-e --rsh --rsync-path -M --remote-option --daemon --config --password-file --log-file --write-batch",
    "rubocop": "-r -c",
    "ruff": "-o --output-file",
    "rustc": "-C --codegen -Z --sysroot",
    "scons": "-f --file --makefile --sconstruct -C --directory -Y",
    "diff3 sdiff": "-o --output --diff-program",
    "sort": "-o --output --compress-program -T --files0-from",
    "sphinx-build": "-c --conf-dir -D --define",
    "split": "--filter",
    "ssh-keygen ssh-add": "-D -s -P",
    "svn": "--config-option --config-dir --diff-cmd --diff3-cmd --editor-cmd --merge-cmd",
    "tar bsdtar": "-I -F --use-compress-program --checkpoint-action --to-command --info-script --new-volume-script"
    " --rsh-command --rmt-command --occurrence-action --options -T --files-from --index-file",
    "task go-task": "-t --taskfile -d --dir",
    "tcpdump tshark wireshark dumpcap": "-z -w -X",
    "uv poetry pipenv hatch pdm rye pixi": "--directory --project -C --config-file --python -p --cache-dir",
    "wget": "-e --execute --config --use-askpass -O --output-document -o --output-file -a --append-output -P"
    " --directory-prefix -i --input-file --post-file --body-file --warc-file",
    "xmllint xsltproc": "-o --output --shell --path",
    "yq": "-i --inplace -s --split-exp --from-file",
    "yt-dlp youtube-dl": "--exec --exec-before-download --config-locations --config-location --downloader"
    " --external-downloader --plugin-dirs --postprocessor-args -o --output -P",
    "zip": "-T -TT --test --unzip-command",
}

_PYTEST_REPORT = re.compile(r"-[lqsvx]*r[A-Za-z]+")
"""The option -r, which has letters as its value."""
_FULL_NAMES = _names("--co --cov --coverage")
"""Options that look like abbreviations of another one."""

# The same for options that are words with one dash, or two.
_WORD_OPTIONS = {
    "find gfind bfs": "-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls",
    "go": "-exec -toolexec -vettool -overlay -modfile -C -ldflags -gccgoflags -gcflags -asmflags -compiler -pkgdir -w"
    " -test.outputdir -outputdir",
    "openssl": "-engine -provider -provider-path -out -writerand -config -keyout -signature",
    "terraform tofu": "-chdir -plugin-dir -from-module -out -state -state-out -backend-config",
}

# The first word after the program that makes it a launcher.
_SUBCOMMANDS = {
    "asdf mise rtx rbenv pyenv nodenv jenv nvm fnm volta": "exec x run shell use plugin plugins set",
    "bazel bazelisk": "run",
    "mix": "run eval cmd do escript.install archive.install",
    "rustup": "run toolchain override set self default",
    "django-admin": "shell dbshell runscript",
    "lerna nx tox": "exec e",
    "brew": "sh ruby bundle edit irb tap",
    "bundle bundler": "e exec console open config plugin",
    "composer": "exec run-script run config global",
    "conda mamba micromamba": "run config env",
    "coverage": "run",
    "gem": "exec open",
    "gh": "alias extension extensions ext codespace cs config browse",
    "go": "run generate tool",
    "heroku flyctl fly railway": "run ssh exec shell console",
    "hg": "extdiff serve histedit",
    "ip": "netns vrf",
    "meson": "devenv",
    "npm": "exec x init innit create explore edit config c set set-script pkg",
    "pip": "config",
    "poetry pipenv hatch pdm rye pixi": "run shell env config exec x self plugin",
    "pre-commit": "try-repo",
    "snap flatpak": "run",
    "uv": "run tool x",
}

# Programs of which only these first words are known to start nothing.
_HARMLESS_SUBCOMMANDS = {
    "bun": "test install i ci add remove rm update outdated pm --version -v",
    "cargo": "add b bench build c check clean clippy d doc fetch fix fmt generate-lockfile info init install"
    " locate-project metadata new nextest pkgid r remove rm run rustc rustdoc search t test tree uninstall update"
    " vendor version --version -V --list",
    "cmake": "--build --version --install",
    "docker podman nerdctl": "ps images logs inspect version info stats top port diff history events search",
    "docker-compose": "ps logs images version top port",
    "dotnet": "add build clean format list pack publish remove restore test --info --list-runtimes --list-sdks"
    " --version",
    "helm": "list ls status get history version search",
    "kubectl oc": "get describe logs top version explain api-resources api-versions cluster-info",
    "openssl": "version x509 dgst rand prime ciphers",
    "pnpm yarn": "install i add remove rm up update upgrade why list ls info outdated audit test t build lint start"
    " dev format typecheck check --version -v",
    "systemctl": "status is-active is-enabled is-failed list-units list-unit-files list-timers show cat",
}

# What is an option, or the first word, of a launcher in programs that are not listed above.
_GENERAL_OPTION = re.compile(
    "adapter|bazelrc|bootstrap|command|config|eval|exec|hook|linker|loader|plugin|preload|program|rcfile|require"
    "|runner|runtool|rununder|workspacestatus"
)
_HARMLESS_OPTIONS = _names("--print-config --show-config --showConfig --strict-config")
_HARMLESS_OPTIONS_OF = {
    "cmake ctest": "--config",
    "dotnet ng nx": "--configuration",
    "pip uv": "--requirement --requirements --require-hashes --require-virtualenv",
    "rsync": "--executability",
}
_GENERAL_SUBCOMMANDS = _names("console eval exec run shell")
# Programs whose first word is data, or a task that a file of the project names.
_WITHOUT_LAUNCHES = _names("""
ack ag ant awk basename black bmake cargo cat cc cd chmod chown cksum clang cmp column comm cp curl cut cypress date
df diff dirname du echo egrep eslint false fd fdfind fgrep file find flake8 fold g++ gcc gh git golangci-lint gradle
gradlew grep gunzip gzip head hexdump id isort jest join jq just kill lerna ln ls make mawk md5sum mkdir mv mypy nawk
ninja nl npm nx od paste pre-commit prettier print printf ps pwd py.test pylint pytest rake readlink realpath remake rev
rg rm rmdir rsync ruff sed seq sha1sum sha256sum sleep sort stat strings tac tail tar task tee test touch tox tr tree
cmake true tsc turbo type uniq unzip vitest wc wget whereis which xxd xz yq zip
""")

_GIT_FLAGS = _names("--no-pager -P --no-optional-locks --literal-pathspecs --no-replace-objects --version -v")
_GIT_SUBCOMMANDS = _names("""
add am annotate apply archive bisect blame branch cat-file check-attr check-ignore check-mailmap check-ref-format
checkout cherry cherry-pick clean clone commit commit-tree config count-objects describe diff diff-files diff-index
diff-tree fetch for-each-ref format-patch fsck gc get-tar-commit-id grep hash-object init log ls-files ls-remote ls-tree
merge merge-base merge-tree mktag mktree mv name-rev notes pack-refs patch-id prune prune-packed pull push
range-diff rebase reflog remote replace request-pull rerere reset restore rev-list rev-parse revert rm
shortlog show show-branch show-ref sparse-checkout stage stash status stripspace submodule switch symbolic-ref tag
update-index update-ref var verify-commit verify-pack verify-tag version whatchanged worktree write-tree
""")
"""The subcommands of git that start nothing. Any other name may be an alias, or a program `git-NAME`."""
_GIT_OPTIONS = (
    "--config --config-env --edit-description --exec --exec-path --ext-diff --extcmd --interactive"
    " --open-files-in-pager --output --receive-pack --remote --template --tool --upload-pack"
)
_GIT_MORE_OPTIONS = {
    "am": "--directory",
    "apply": "--directory --unsafe-paths",
    "archive": "-o",
    "cherry-pick": "--strategy",
    "clone": "-u -c",
    "format-patch": "-o --output-directory",
    "gc": "--expire-to",
    "grep": "-O",
    "init": "--separate-git-dir",
    "ls-remote": "-u",
    "merge": "-s --strategy",
    "pull": "-s --strategy",
    "rebase": "-x -i -s --strategy",
    "revert": "--strategy",
}
_GIT_OPTIONS_BY_SUBCOMMAND = {
    name: _Options(f"{_GIT_OPTIONS} {_GIT_MORE_OPTIONS.get(name, '')}") for name in _GIT_SUBCOMMANDS
}
_GIT_LAUNCHING_WORDS = {"bisect": _names("run replay"), "submodule": _names("foreach add")}
_GIT_CONFIG_FILES = _names("--global --local --system --worktree")
_GIT_CONFIG_READS = _names("--get --get-all --get-regexp --get-urlmatch --list -l list get")

_COMPILER_OPTIONS = (
    *("@", "-B", "-specs", "--specs", "-wrapper", "-fplugin", "-fpass-plugin", "-Xclang", "-fuse-ld", "-Wl,"),
    *("-Xlinker", "-load", "--config", "--gcc-toolchain", "--ld-path"),
)
_CARGO_WITH_ARGUMENTS = _names("bench fmt nextest r run t test")
_MAVEN_GOALS = _names("""
checkstyle:check compiler:compile dependency:analyze dependency:resolve dependency:tree failsafe:verify jacoco:report
spotless:apply spotless:check surefire:test versions:display-dependency-updates
""")
_MAKE_OPTIONS = _Options("-f -C -E -I --file --makefile --directory --eval --include-dir")
_SED_SCRIPT = re.compile(  # Print, delete, quit or replace at addresses; no other command.
    r"""(?:\s*(?:\d+|\$|/[^/\\[]*/)?(?:,(?:\+?\d+|\$|/[^/\\[]*/))?\s*!?
    (?:[pdqD=]|s(?P<mark>[/|\#,@:])(?:(?!(?P=mark))[^\\[]|\\.)*(?P=mark)(?:(?!(?P=mark))[^\\]|\\.)*(?P=mark)[gpiI0-9]*)?
    \s*;?)""",
    re.VERBOSE,
)
_SED_FLAGS = _names("-n -E -r -s -u -z -nE -En -nr -rn --quiet --silent --regexp-extended --null-data --posix")
_AWK_ACTION = re.compile(r"system|getline|[|>@]")


def find_launch(words: Sequence[Word]) -> str:
    """Return why a command can run more than its own program, to follow "the command ..."; empty if it cannot."""
    program = program_name(words)
    if is_wrapper(words) or is_interpreter(words):
        return f"runs what is written in the arguments of {program}"
    texts = [word.text for word in words[1:]]
    if reason := _find_general_risk(_spellings(program), texts):
        return f"can run other programs: {program} with {reason[:40]!r}"
    for name in _spellings(program):
        reason = next((word for word in texts if _is_risky_option(name, word)), "") or _find_subcommand(name, texts)
        reason = reason or (_CHECKS[name](texts) if name in _CHECKS else "")
        if name in _CHECKED:
            reason = reason or next((word.text for word in words[1:] if _may_be_option(word)), "")
        if reason:
            return f"can run other programs: {program} with {reason[:40]!r}"
    return ""


def _find_general_risk(names: list[str], texts: list[str]) -> str:
    """Return an option or first word that makes almost any program start another one, or load code."""
    first_words = texts if texts and texts[0].startswith("-") else texts[:1]
    if not _GENERAL_SUBCOMMANDS.isdisjoint(first_words) and _WITHOUT_LAUNCHES.isdisjoint(names):
        return next(word for word in first_words if word in _GENERAL_SUBCOMMANDS)
    harmless = _HARMLESS_OPTIONS | {option for name in names for option in _HARMLESS_OPTIONS_BY_NAME.get(name, ())}
    for word in texts:
        option = word.partition("=")[0]
        is_listed = option.startswith("--") and _GENERAL_OPTION.search(re.sub("[-_]", "", option).lower())
        if is_listed and option not in harmless and not option.startswith("--no-"):
            return word
    return ""


def _may_be_option(word: Word) -> bool:
    """Return whether a wildcard for file names may become an option: a file can have the name of one."""
    return word.glob == 0 or (word.glob > 0 and word.text.startswith("-"))


def is_wrapper(words: Sequence[Word]) -> bool:
    """Return whether the arguments of a program are another command, as those of sudo or xargs."""
    return any(
        name in _WRAPPERS or name.startswith(("ld-linux", "ld-musl")) for name in _spellings(program_name(words))
    )


def is_interpreter(words: Sequence[Word]) -> bool:
    """Return whether a program runs code, such as python or an editor."""
    return any(name in _INTERPRETERS for name in _spellings(program_name(words)))


def program_name(words: Sequence[Word]) -> str:
    """Return the name of a program without its folder, in lower case: some file systems ignore the case of letters."""
    return words[0].text.rpartition("/")[2].lower() if words else ""


def _spellings(program: str) -> list[str]:
    """Return a name also without `.exe`, its version (python3.12), and the g of GNU programs (gsed)."""
    name = re.sub(r"\.(exe|basic|tiny|nox|gtk3?|traditional|openbsd|real)$", "", program)
    plain = name.rstrip("-.0123456789")
    return [*dict.fromkeys(text for text in (name, plain, name.removeprefix("g"), plain.removeprefix("g")) if text)]


def _by_name(table: dict[str, str]) -> dict[str, frozenset[str]]:
    return {name: _names(values) for names, values in table.items() for name in names.split()}


_OPTIONS_BY_NAME = {name: _Options(options) for names, options in _OPTIONS.items() for name in names.split()}
_WORD_OPTIONS_BY_NAME = _by_name(_WORD_OPTIONS)
_SUBCOMMANDS_BY_NAME = _by_name(_SUBCOMMANDS)
_HARMLESS_BY_NAME = _by_name(_HARMLESS_SUBCOMMANDS)
_HARMLESS_OPTIONS_BY_NAME = _by_name(_HARMLESS_OPTIONS_OF)


_WITH_SUBCOMMANDS = {*_SUBCOMMANDS_BY_NAME, *_HARMLESS_BY_NAME, "git", "gh", "go", "npm", "pip", "uv"}


def has_subcommands(program: str) -> bool:
    """Return whether the first word after a program says what it does, and is not data."""
    return program in _WITH_SUBCOMMANDS


def _is_risky_option(program: str, word: str) -> bool:
    name = word.partition("=")[0].replace("--", "-", 1)
    options = _OPTIONS_BY_NAME.get(program)
    if program in ("pytest", "py.test") and _PYTEST_REPORT.fullmatch(word):
        return False
    return name in _WORD_OPTIONS_BY_NAME.get(program, ()) or (options is not None and options.has(word))


def _find_subcommand(program: str, texts: list[str]) -> str:
    """Return the word that makes a program a launcher; some accept it abbreviated.

    Options before that word may have values, so then any word counts.
    """
    words = texts if texts and texts[0].startswith("-") else texts[:1]
    names, harmless = _SUBCOMMANDS_BY_NAME.get(program, ()), _HARMLESS_BY_NAME.get(program)
    abbreviations = [word for word in words if len(word) > 1 and any(name.startswith(word) for name in names)]
    risky = next((word for word in words if word in names), "") or "".join(abbreviations[:1])
    return risky or (words[0] if harmless is not None and words and words[0] not in harmless else "")


def _check_git(texts: list[str]) -> str:
    start = next((index for index, word in enumerate(texts) if word not in _GIT_FLAGS), len(texts))
    if start == len(texts):
        return ""
    subcommand, *others = texts[start:]
    if subcommand not in _GIT_SUBCOMMANDS:
        return subcommand
    if subcommand == "config":
        words = [word for word in others if word not in _GIT_CONFIG_FILES]
        is_name = len(words) == 1 and re.fullmatch(r"\w[\w-]*\.[\w.-]+", words[0])
        return "" if is_name or (words and words[0] in _GIT_CONFIG_READS) else subcommand
    if not _GIT_LAUNCHING_WORDS.get(subcommand, frozenset()).isdisjoint(others):
        return subcommand
    options = _GIT_OPTIONS_BY_SUBCOMMAND[subcommand]
    return next((word for word in others if options.has(word) or re.match(r"\w+(::|://-)", word)), "")


def _check_make(texts: list[str]) -> str:
    return next((word for word in texts if "=" in word or _MAKE_OPTIONS.has(word)), "")


def _check_sed(texts: list[str]) -> str:
    script = next((word for word in texts if not word.startswith("-")), "")
    option = next((word for word in texts if word.startswith("-") and word not in _SED_FLAGS), "")
    position = 0
    while position < len(script) and (match := _SED_SCRIPT.match(script, position)) and match.end() > position:
        position = match.end()
    return option or script[position:]


def _check_awk(texts: list[str]) -> str:
    """Allow a program without output to files or commands, and the options -F and -v."""
    position = 0
    while position < len(texts) and (match := re.match(r"-([Fv])(.*)", texts[position], re.DOTALL)):
        position += 1 if match[2] else 2
    program, others = "".join(texts[position : position + 1]), texts[position + 1 :]
    options = next((word for word in [program, *others] if word.startswith("-")), "")
    return options or (program if _AWK_ACTION.search(program) else "")


def _check_tar(texts: list[str]) -> str:
    """Check options that are written without a dash in the first word, and archives on other computers."""
    if texts and not texts[0].startswith("-") and ("I" in texts[0] or "F" in texts[0]):
        return texts[0]
    return next((word for word in texts if ":" in word.partition("/")[0]), "")


def _check_compiler(texts: list[str]) -> str:
    """Check options that choose the programs of a compiler; `@` reads more options from a file."""
    return next((word for word in texts if word.startswith(_COMPILER_OPTIONS)), "")


def _find_argument_file(texts: list[str]) -> str:
    """Find a file of more arguments."""
    return next((word for word in texts if word.startswith("@")), "")


def _check_maven(texts: list[str]) -> str:
    """Check goals of plugins, which are downloaded."""
    return _find_separator(texts) or next((word for word in texts if ":" in word[1:] and word not in _MAVEN_GOALS), "")


def _check_cargo(texts: list[str]) -> str:
    """Check what follows two dashes: the arguments of a test are harmless, those of the compiler are not."""
    if "--" not in texts or texts[0] in _CARGO_WITH_ARGUMENTS:
        return ""
    words = texts[texts.index("--") + 1 :] if texts[0] == "clippy" else ["--"]
    return next((word for word in words if not re.match("-[DWAF]|[^-@]", word)), "")


def _check_cmake(texts: list[str]) -> str:
    """Check the arguments of the build tool."""
    words = texts[texts.index("--") + 1 :] if "--" in texts else []
    return next((word for word in words if not re.fullmatch(r"-j\d*|\d+", word)), "")


def _check_dotnet(texts: list[str]) -> str:
    """Check properties and loggers of the build, which can name commands and files of code."""
    return next(
        (word for word in texts if re.match(r"(--?|/)(p|property|d?l|(distributed)?logger)\b|@", word, re.I)), ""
    )


def _find_separator(texts: list[str]) -> str:
    """Find two dashes: what follows are the arguments of another program."""
    return "--" if "--" in texts else ""


def _find_output_file(texts: list[str]) -> str:
    """Find the second file: it is written."""
    operands = [word for word in texts if not word.startswith("-")]
    return "".join(operands[1:2])


def _check_arithmetic(texts: list[str]) -> str:
    """Some shells evaluate the operands of these builtins, also substitutions in them."""
    return next((word for word in texts if "$" in word or "`" in word or word == "-v"), "")


_CHECKS: dict[str, Callable[[list[str]], str]] = {
    **dict.fromkeys(("cc", "gcc", "g++", "c++", "clang", "clang++"), _check_compiler),
    **dict.fromkeys(("pytest", "py.test", "mypy"), _find_argument_file),
    **dict.fromkeys(("mvn", "mvnw"), _check_maven),
    **dict.fromkeys(("fab", "gh", "lerna", "nx", "tox"), _find_separator),
    "cargo": _check_cargo,
    "cmake": _check_cmake,
    "dotnet": _check_dotnet,
    "git": _check_git,
    "make": _check_make,
    "bmake": _check_make,
    "remake": _check_make,
    "sed": _check_sed,
    "awk": _check_awk,
    "mawk": _check_awk,
    "nawk": _check_awk,
    "tar": _check_tar,
    "bsdtar": _check_tar,
    "uniq": _find_output_file,
    "xxd": _find_output_file,
    "printf": _check_arithmetic,
    "test": _check_arithmetic,
    "print": _check_arithmetic,
}
_CHECKED = {*_OPTIONS_BY_NAME, *_WORD_OPTIONS_BY_NAME, *_SUBCOMMANDS_BY_NAME, *_HARMLESS_BY_NAME, *_CHECKS}
