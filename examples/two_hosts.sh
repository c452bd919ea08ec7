#!/usr/bin/env bash
# Two hosts without a scheduler:  bash examples/two_hosts.sh FIRST SECOND [OVERRIDES...]
# Runs the same command here and over ssh on SECOND, in a folder of the same name with the same environment. FIRST is this
# host's name or address as SECOND reaches it. Results lie here, and nothing stays there.
set -euo pipefail
if (($# < 2)); then
  echo "usage: bash examples/two_hosts.sh FIRST SECOND [OVERRIDES...]" >&2
  exit 2
fi
first=$1 second=$2
shift 2

command=(python -m scaling.run nodes=2 "launcher.rendezvous=$first:29400" "$@")

ssh "$second" "cd $(printf '%q' "$PWD") && exec $(printf '%q ' "${command[@]}")" &
other=$!
code=0
"${command[@]}" || code=$?
wait "$other" || true # it ends with the run, and with the same exit code
exit "$code"
