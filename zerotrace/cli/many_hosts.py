"""``zerotrace capture --hostfile``: the same capture on every host of a file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from zerotrace.cli.outcome import talk
from zerotrace.cli.terminal import printable

#: Options that each host gets anew; all of them take a value.
_OWN = ("--hostfile", "--launcher", "--gpus", "--rdzv-endpoint")


def capture_on_hosts(
    hostfile: Path, gpus: int | None, endpoint: str | None, words: Sequence[str], *, start: bool
) -> None:
    """Capture on every host.

    Args:
        hostfile: file in DeepSpeed's format.
        gpus: ranks a host, where given.
        endpoint: where the hosts meet, where given.
        words: the command line as it was given.
        start: start the commands over ssh; else print them.
    """
    from zerotrace.capture.hostfile import read_hostfile, slots_of_all
    from zerotrace.capture.hosts import host_commands, run_on_hosts
    from zerotrace.capture.nodes import DEFAULT_PORT, parse_endpoint

    hosts = read_hostfile(hostfile)
    num_ranks = slots_of_all(hosts, gpus)
    first = next(iter(hosts)).rpartition("@")[2]
    endpoint = endpoint or f"{first}:{DEFAULT_PORT}"
    parse_endpoint(endpoint)
    commands = host_commands(list(hosts), without_options(words, _OWN), endpoint, num_ranks)
    if not start:
        for command in commands:
            click.echo(f"ssh {command.host} {shlex.quote(command.shell())}")
        return
    talk(f"Capturing on {len(hosts)} hosts with {num_ranks} ranks each; they meet at {endpoint}")
    output = run_on_hosts(commands, lambda host, line: talk(printable(f"[{host}] {line}")))
    click.echo(printable(output, longest_line=None), nl=False)


def without_options(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """A command line without some options and their values; what follows ``--`` is left alone."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            kept += [word, *rest]
        elif word in names:
            next(rest, None)
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return kept
