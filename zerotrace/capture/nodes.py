"""Where the machines of a run meet, and over which network interface."""

from __future__ import annotations

import errno
import re
import socket
import sys

from zerotrace.capture.plan import Nodes
from zerotrace.errors import CaptureError

#: torchrun's own default port.
DEFAULT_PORT = 29500


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of a ``--rdzv-endpoint``; an IPv6 address stands in brackets.

    Raises:
        CaptureError: it is not of the form ``HOST:PORT``.
    """
    found = re.fullmatch(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+)(?::(?P<port>\d{1,5}))?", text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise CaptureError(
            f"--rdzv-endpoint {text!r} is not of the form HOST:PORT.",
            code="endpoint_invalid",
            hint="Pass the name or address of node 0 as the other nodes see it: --rdzv-endpoint node0:29500",
        )
    return found["host"].strip("[]"), port


def check_endpoint(nodes: Nodes) -> None:
    """Check that the nodes can meet, before a process starts: node 0 must be able to listen there.

    Raises:
        CaptureError: the host is unknown, is another machine, or the port is taken.
    """
    if nodes.endpoint is None:
        return
    host, port = parse_endpoint(nodes.endpoint)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CaptureError(
            f"The host of --rdzv-endpoint {nodes.endpoint} is not known here: {error.strerror}.",
            code="endpoint_unknown",
            hint="Pass a name or an address of node 0 that this machine can resolve.",
        ) from error
    if nodes.node_rank > 0:
        return
    with socket.socket(family, kind, protocol) as listener:
        # As torch's own store does: a port in TIME_WAIT is not taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _cannot_listen(nodes.endpoint, port, error) from error


def find_interface(nodes: Nodes) -> str | None:
    """The network interface over which this machine reaches the others; ``None`` where that cannot be told."""
    if not sys.platform.startswith("linux"):
        return None
    if nodes.endpoint is None:
        return "lo"
    import psutil

    host, port = parse_endpoint(nodes.endpoint)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Sends nothing: the kernel only picks the address that a packet would leave from.
            probe.connect(address)
            source = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == source for entry in addresses):
            return str(name)
    return None


def _cannot_listen(endpoint: str, port: int, error: OSError) -> CaptureError:
    if error.errno == errno.EADDRINUSE:
        return CaptureError(
            f"Port {port} of --rdzv-endpoint {endpoint} is taken on this machine.",
            code="port_taken",
            hint="Pass another port, the same one on every node; `ss -ltnp` shows who has it.",
        )
    return CaptureError(
        f"Node 0 cannot listen at --rdzv-endpoint {endpoint}: {error.strerror}.",
        code="endpoint_elsewhere",
        hint="The endpoint is an address of node 0: start this command with --node-rank 0 on that machine.",
    )
