"""Starts a capture on every host of a hostfile over ssh, and ends it on all of them when one fails."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct, field

from zerotrace.capture.machine import recorded_environment
from zerotrace.capture.stopping import InterruptError, on_stop_signal, raise_interrupt
from zerotrace.errors import CaptureError

#: Set for a launcher that another one has started over ssh: it ends its ranks when its standard input closes, which is
#: what is left to notice when the connection breaks.
TETHER_VARIABLE = "ZEROTRACE_TETHER"

_GRACE_S = 30.0
_SSH_FAILED = 255


class HostCommand(Struct, frozen=True, kw_only=True):
    """What is run on one host."""

    host: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def shell(self) -> str:
        """The command for a shell on that host: the same folder and the same Python as here."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', *variables, *self.words])}"


def host_commands(hosts: Sequence[str], words: Sequence[str], endpoint: str, num_ranks: int) -> list[HostCommand]:
    """The command of each host.

    Args:
        hosts: hosts in the order of their ranks.
        words: options of ``zerotrace capture`` that all share.
        endpoint: where they meet, on the first host.
        num_ranks: ranks a host.
    """
    environment = {
        name: os.environ[name] for name in (*recorded_environment(os.environ), "PYTHONPATH") if name in os.environ
    }
    commands = []
    for node_rank, host in enumerate(hosts):
        nodes = {"--gpus": num_ranks, "--nnodes": len(hosts), "--node-rank": node_rank, "--rdzv-endpoint": endpoint}
        options = [str(part) for option in nodes.items() for part in option]
        commands.append(
            HostCommand(
                host=host,
                words=(sys.executable, "-m", "zerotrace", "capture", *options, *words),
                environment=environment,
            )
        )
    return commands


def run_on_hosts(commands: Sequence[HostCommand], on_line: Callable[[str, str], None]) -> str:
    """Run all commands over ssh to their end.

    Args:
        commands: one a host; the first is node 0.
        on_line: told each line that a host writes to stderr, with the host.

    Returns:
        What node 0 has written to stdout.

    Raises:
        CaptureError: a host failed, with its exit code; it has been ended on all others.
    """
    runs: list[_HostRun] = []
    try:
        with on_stop_signal(raise_interrupt):
            for command in commands:
                runs.append(_HostRun(command, on_line))
            failed = _wait(runs)
    except InterruptError as stop:
        raise CaptureError(
            f"The capture was interrupted ({stop.signal.name}); it has been ended on all hosts.",
            code="interrupted",
            hint="What each host has kept is said above.",
            exit_code=128 + stop.signal,
        ) from None
    finally:
        # A second Ctrl-C must not cut this short.
        with on_stop_signal(signal.SIG_IGN):
            for run in runs:
                run.let_go()
            deadline = time.monotonic() + _GRACE_S
            for run in runs:
                run.end(deadline)
    if failed is not None:
        raise _failure(failed)
    return runs[0].output


class _HostRun:
    """The ssh of one host."""

    def __init__(self, command: HostCommand, on_line: Callable[[str, str], None]) -> None:
        self.host = command.host
        self.output = ""
        self._on_line = on_line
        tethered = HostCommand(
            host=command.host, words=command.words, environment={**command.environment, TETHER_VARIABLE: "1"}
        )
        try:
            self.process = subprocess.Popen(
                # A password prompt would hang; `--` so that no host is taken for an option.
                ["ssh", "-o", "BatchMode=yes", "--", command.host, tethered.shell()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError:
            raise CaptureError(
                "There is no ssh on this machine, which --hostfile needs.",
                code="ssh_missing",
                hint="Install it, or pass --launcher print and start the printed command on each host yourself.",
            ) from None
        self._readers = [
            threading.Thread(target=self._keep, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._pass_on, args=(self.process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def let_go(self) -> None:
        """Close the tether: the launcher on the host ends its ranks, if there are any left."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self, deadline: float) -> None:
        """Wait for ssh, and end it when the time has come."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for reader in self._readers:
            reader.join(1.0)

    def _keep(self, stream: IO[str]) -> None:
        self.output = stream.read()

    def _pass_on(self, stream: IO[str]) -> None:
        for line in stream:
            self._on_line(self.host, line.rstrip("\n"))


def _wait(runs: Sequence[_HostRun]) -> _HostRun | None:
    """Wait until all have ended well, or one has not: that one."""
    while True:
        codes = [run.process.poll() for run in runs]
        for run, code in zip(runs, codes):
            if code:
                return run
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.1)


def _failure(run: _HostRun) -> CaptureError:
    code = run.process.returncode
    if code == _SSH_FAILED:
        return CaptureError(
            f"ssh could not start the capture on {run.host}, or lost the connection; it has been ended on all hosts.",
            code="ssh_failed",
            hint=f"Check that `ssh -o BatchMode=yes {run.host} true` works without a password.",
        )
    return CaptureError(
        f"The capture failed on {run.host} with exit code {code}; it has been ended on all hosts.",
        code="host_failed",
        hint="What that host said stands above.",
        exit_code=128 - code if code < 0 else code,
    )


def hold_to_stdin() -> None:
    """Have this launcher stop as on SIGTERM when its standard input closes, if another one has started it."""
    if not os.environ.pop(TETHER_VARIABLE, None):
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
