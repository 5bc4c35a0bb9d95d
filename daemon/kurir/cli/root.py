"""The command `kurirctl`: names of commands and where each lives. A command's module is loaded when it is called."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module

import click

from kurir import __version__
from kurir.cli.session import session_options

# name: (module, attribute, what it does). The help of the whole is printed from this, without loading the commands.
COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "submit": ("submit", "submit", "Hand over a job of a topic."),
    "post": ("submit", "post", "Hand over a job that carries its own URL."),
    "work": ("work", "work", "Run a command for each job of a topic."),
    "list": ("look", "list_jobs", "List jobs, newest first."),
    "show": ("show", "show", "Show all about a job."),
    "why": ("waiting", "why", "Say what keeps a job from going now."),
    "wait": ("waiting", "wait", "Wait until jobs have ended."),
    "cancel": ("act", "cancel", "Give jobs up."),
    "retry": ("act", "retry", "Send dead jobs again."),
    "edit": ("edit", "edit", "Change a job that waits, is dead or in conflict."),
    "resolve": ("act", "resolve", "Settle a conflict."),
    "dead": ("dead", "dead", "Group, list, retry or discard dead letters."),
    "dropped": ("dropped", "dropped", "List what was dropped without having been delivered."),
    "flush": ("flush", "flush", "Try now what waits for a backoff or a breaker."),
    "pause": ("operate", "pause", "Stop sending for a topic or destination."),
    "resume": ("operate", "resume", "Go on sending for a topic or destination."),
    "schedule": ("schedule", "schedule", "List, set, remove or run schedules."),
    "secret": ("secret", "secret", "List, set or remove your secrets."),
    "status": ("status", "status", "Show how the daemon is doing."),
    "top": ("top", "top", "Watch what is under way, live."),
    "doctor": ("doctor", "doctor", "Say what is wrong, and the cure."),
    "events": ("events", "events", "Follow what happens."),
    "metrics": ("metrics", "metrics", "Print the metrics, or write them where node_exporter reads."),
    "relay": ("relay", "relay", "Move an application's own outbox table into the daemon."),
    "backup": ("operate", "backup", "Make a consistent copy of the store."),
    "export": ("move", "export_jobs", "Write all jobs that are not delivered to a file."),
    "import": ("move", "import_jobs", "Take in the jobs of an export."),
    "owner": ("owner", "owner", "See, remove or move what users have who are gone."),
    "ack": ("operate", "ack", "Say that a degraded reason was seen."),
    "completion": ("completion", "completion", "Print the script that makes a shell complete."),
}

# How the help groups them, by what a person wants to do. A command that no section names stands in the last one.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Hand over and take on": ("submit", "post", "work", "relay"),
    "See what became of it": ("list", "show", "why", "wait", "events", "dropped"),
    "Act on jobs": ("cancel", "retry", "edit", "flush", "dead", "conflicts", "resolve"),
    "Steer what is sent": ("pause", "resume", "schedule", "secret"),
    "Look after the daemon": ("status", "top", "doctor", "metrics", "ack", "backup", "export", "import", "owner"),
    "This command line": ("completion",),
}

EPILOG = """\b
Exit codes: 0 done; 1 the job is dead, in conflict or cancelled; 64 usage;
65 refused data; 69 daemon not reachable; 73 queue or disk full;
75 still waiting; 77 not allowed.
"""


class Commands(click.Group):
    """A group that knows its commands by name, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = COMMANDS.get(cmd_name)
        if known is None:
            return None
        module, attribute, _ = known
        command: click.Command = getattr(import_module(f"kurir.cli.commands.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, COMMANDS))
        for title, names in sections():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{wide}}", COMMANDS[name][2]) for name in names])


def sections() -> Iterator[tuple[str, list[str]]]:
    """The sections with the commands that there are, each command once."""
    *_, last = SECTIONS
    placed = {name for names in SECTIONS.values() for name in names}
    for title, names in SECTIONS.items():
        others = [name for name in COMMANDS if name not in placed] if title == last else []
        there = [name for name in names if name in COMMANDS] + others
        if there:
            yield title, there


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@session_options
@click.version_option(__version__, prog_name="kurirctl")
def kurirctl() -> None:
    """Hand jobs to kurird, and see and steer what it delivers."""
