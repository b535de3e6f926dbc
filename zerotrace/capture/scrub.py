"""What a capture keeps of a machine and its user: no path, no host, no secret.

A capture is made to be passed on. In texts that come from outside (the command line, variables, DeepSpeed's
configuration) ``(a path)``, ``(a host)`` and ``(hidden)`` stand for what must not go with it. It is told by form and by
the names of options: a secret under a harmless name, and of no known form, stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PATH, HOST, HIDDEN = "(a path)", "(a host)", "(hidden)"

# Of a name's words: `--hf-token`, `HF_TOKEN`, `hubToken`, `optimizer.api_key`. Not `--max-tokens`, `--tokenizer`.
_SECRET = frozenset(
    {"token", "secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "auth",
     "bearer", "apikey", "key", "pat"}
)  # fmt: skip
_HOSTS = frozenset(
    {"host", "hosts", "hostname", "addr", "address", "endpoint", "server", "url", "uri", "ip", "node", "nodelist",
     "user", "username", "email"}
)  # fmt: skip
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

_SECRET_FORM = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|pypi-|wandb_v1_)[A-Za-z0-9_-]{8,}"
    r"|AKIA[0-9A-Z]{16}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"
    r"|[0-9a-fA-F]{32,}"
    r"|(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{24,}"
    r")"
)
_PAIR = re.compile(r'(?P<name>"[\w.-]+"\s*:\s*)"(?P<value>(?:[^"\\]|\\.)*)"')
_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://[^\s,;\"']+")
_PLACE = re.compile(
    r"[\w.+-]+@[\w.-]+(?::\d+)?"
    r"|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])(?::\d+)?"
    r"|\[[0-9a-f:]*:[0-9a-f:.%\w]*\](?::\d+)?"
)
_PATH = re.compile(r"(?:^|(?<=[\s=,:;\"'(\[{]))(?:~[\w.-]*(?=/|$)(?:/[^\s,:;\"')\]}]*)?|/(?!/)[^\s,:;\"')\]}]+)")


def well_formed(text: str) -> str:
    """A text with the bytes spelled out that are no UTF-8, such as names of files and arguments may hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def scrub_text(text: str) -> str:
    """A text without the paths, hosts and secrets that its form tells."""
    if text.startswith(("/", "~")):
        # All of it: a path may hold spaces.
        return PATH
    text = _PAIR.sub(lambda found: f'{found["name"]}"{scrub_value(found["name"], found["value"])}"', text)
    text = _URL.sub(lambda found: PATH if found["scheme"] == "file" else f"{found['scheme']}://{HOST}", text)
    text = _PATH.sub(PATH, text)
    text = _PLACE.sub(HOST, text)
    return well_formed(_SECRET_FORM.sub(HIDDEN, text))


def scrub_value(name: str, value: str) -> str:
    """A value as :func:`scrub_text` leaves it, or what stands for it where its name says what it is."""
    words = [word.lower() for word in _WORD.findall(name.rpartition(".")[2])]
    if _SECRET & set(words):
        return HIDDEN
    if value and not value.isdigit() and _HOSTS & set(words[-1:]):
        return HOST
    return scrub_text(value)


def scrub_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be passed on: what was asked for, without where and as whom.

    Both forms of an option are known, ``--token=VALUE`` and ``--token VALUE``, and variables, ``TOKEN=VALUE``.
    """
    return tuple(well_formed(word) for word in _words(words))


def _words(words: Sequence[str]) -> Iterator[str]:
    option = ""
    for word in words:
        name, separator, value = word.partition("=")
        if separator and re.fullmatch(r"-{0,2}[\w.-]+", name):
            # `--set KEY=VALUE` is one of them.
            yield f"{name}={scrub_value(name, value)}"
            option = ""
        elif re.fullmatch(r"--?[A-Za-z][\w.-]*", word):
            yield word
            option = word
        else:
            yield scrub_value(option, word)
            option = ""
