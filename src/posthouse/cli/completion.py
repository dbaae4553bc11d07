"""Completion for shells: each asks `posthouse complete` what could come next."""

import argparse
from collections.abc import Sequence

from posthouse.cli.codes import OK, say

_SCRIPTS = {
    "bash": """\
_posthouse() {
  local found
  COMPREPLY=()
  while IFS= read -r found; do
    COMPREPLY+=("$(printf %q "$found")")
  done < <(posthouse complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _posthouse posthouse
""",
    "zsh": """\
#compdef posthouse
_posthouse() {
  local -a found
  found=(${(f)"$(posthouse complete -- "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)"})
  compadd -a found
}
compdef _posthouse posthouse
""",
    "fish": """\
complete -c posthouse -f -a '(posthouse complete -- (commandline -opc)[2..] (commandline -ct))'
""",
}


def script(options: argparse.Namespace) -> int:
    say(_SCRIPTS[options.shell].rstrip())
    return OK


def complete(options: argparse.Namespace) -> int:
    from posthouse.cli.parser import make_parser

    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    for each in candidates(make_parser(["complete"]), words):
        say(each)
    return OK


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words that could complete the last one."""
    *before, begun = words or [""]
    for word in before:
        rooms = _rooms(parser)
        if rooms is not None and word in rooms.choices:
            parser = rooms.choices[word]
    rooms = _rooms(parser)
    if begun.startswith("-"):
        found = [flag for action in parser._actions for flag in action.option_strings]
    elif rooms is not None:
        found = [name for name in rooms.choices if name != "complete"]
    else:
        wants_queue = any(action.dest == "queue" for action in parser._actions)
        found = _queues() if wants_queue else []
    return sorted(each for each in found if each.startswith(begun))


def _rooms(
    parser: argparse.ArgumentParser,
) -> "argparse._SubParsersAction[argparse.ArgumentParser] | None":
    kind = argparse._SubParsersAction
    return next((each for each in parser._actions if isinstance(each, kind)), None)


def _queues() -> list[str]:
    """The names of the running broker's queues; none where no broker runs."""
    from posthouse.cli.client import Client, Failure

    options = argparse.Namespace(url=None, key_file=None, namespace=None, ca=None)
    try:
        client = Client.of(options)
        page = client.ask("GET", client.space("queues"), limit=1_000)
    except Failure:
        return []
    return [each["name"] for each in page["queues"]]
