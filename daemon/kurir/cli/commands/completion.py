"""`kurirctl completion`: the script that makes a shell complete commands, options, topics, destinations and ids."""

from __future__ import annotations

import click

from kurir.cli import exits, screen
from kurir.cli.session import Session, pass_session, session_options

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_KURIRCTL_COMPLETE"


@click.command(short_help="Print the script that makes a shell complete.")
@click.argument("shell", type=click.Choice(SHELLS))
@session_options
@click.pass_context
@pass_session
def completion(session: Session, context: click.Context, /, *, shell: str) -> int:
    """Print the script that makes a shell complete commands, options, topics, destinations and job ids.

    \b
    bash  kurirctl completion bash > ~/.local/share/bash-completion/completions/kurirctl
    zsh   kurirctl completion zsh > DIRECTORY-OF-$fpath/_kurirctl
    fish  kurirctl completion fish > ~/.config/fish/completions/kurirctl.fish

    \b
    For this shell alone: eval "$(kurirctl completion bash)"
    """
    # Imported here: nothing else needs the templates, which every start would pay for.
    from click.shell_completion import ShellComplete, get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    assert kind is not None
    # Of the base class: bash's own runs a bash first, to look at its version.
    script = ShellComplete.source(kind(context.find_root().command, {}, "kurirctl", VARIABLE))
    if session.json:
        screen.say_document({"shell": shell, "script": script})
    else:
        screen.say(script.rstrip("\n"))
    return exits.Exit.OK
