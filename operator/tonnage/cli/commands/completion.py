"""``tonnage completion``: what a shell asks to complete commands and options."""

from typing import Final

import click
from click.shell_completion import get_completion_class

HELP: Final = """Print the completion script of a shell.

For the kubectl plugin, print the script that kubectl asks: put it into the PATH as
kubectl_complete-tonnage, and make it executable.

\b
Examples:
  source <(tonnage completion bash)
  tonnage completion zsh > "${fpath[1]}/_tonnage"
  tonnage completion fish > ~/.config/fish/completions/tonnage.fish
  tonnage completion kubectl > ~/.local/bin/kubectl_complete-tonnage
"""
VARIABLE: Final = "_TONNAGE_COMPLETE"
FOR_KUBECTL: Final = """#!/bin/sh
# kubectl calls this with the words after "kubectl tonnage"; the last one is to be completed.
words="kubectl-tonnage"
count=0
for word in "$@"; do
  words="$words $word"
  count=$((count + 1))
done
COMP_WORDS="$words" COMP_CWORD="$count" _KUBECTL_TONNAGE_COMPLETE=bash_complete kubectl-tonnage |
  sed -e '/^$/d' -e 's/^[a-z]*,//'
echo ":4"
"""
"""The last line is cobra's directive: propose no files."""


@click.command(help=HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "kubectl"]))
def completion(*, shell: str) -> None:
    if shell == "kubectl":
        click.echo(FOR_KUBECTL, nl=False)
        return
    kind = get_completion_class(shell)
    program = click.get_current_context().find_root().command
    if kind is not None:
        click.echo(kind(program, {}, "tonnage", VARIABLE).source())
