#!/bin/sh
# Installs the Debian packages of the tests: PostgreSQL (tests/unit/ledger) and Chromium (tests/web). Three attempts.
set -u
present() { command -v chromium > /dev/null && ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1; }
present && exit 0
export DEBIAN_FRONTEND=noninteractive
for attempt in 1 2 3; do
    apt-get update -qq &&
        apt-get install -qq --yes --no-install-recommends postgresql chromium fonts-dejavu-core > /dev/null &&
        present && exit 0
    echo "attempt $attempt of 3 failed" >&2
    sleep $((attempt * 5))
done
exit 1
