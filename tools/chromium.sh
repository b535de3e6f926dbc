#!/bin/sh
# Makes sure that a Chromium is there for the page tests: installs Debian's as root, else says what to install.
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing chromium for the page tests ..." >&2
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null && exit 0
fi
echo "The page tests need Chromium, and none is on the PATH." >&2
echo "Install it (Debian, Ubuntu: sudo apt-get install chromium), then run make test again." >&2
exit 1
