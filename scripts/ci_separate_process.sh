#!/usr/bin/env bash
# ci_separate_process.sh BIN: runs the cases against a server in a process of its own, reached both ways: started by
# the suite (--grpc-command), and already running (--grpc-address). BIN is the bin folder of an environment that has
# the suite installed. Leaves no process behind.
set -euo pipefail

bin=$1
protocol=openengine
serve=("$bin/grpc-conformance" serve --protocol "$protocol" --server grpcio --port 0)
deadline_s=60

work=$(mktemp -d)
server=''
finish() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cases() {
    "$bin/python" -m pytest --pyargs pytest_grpc_conformance.cases -q -p no:cacheprovider --rootdir . \
        --grpc-protocol "$protocol" "$@"
}

echo '-- started by the suite'
cases --grpc-command "$(printf '%q ' "${serve[@]}")"

echo '-- already running'
# timeout passes SIGTERM on, and ends a server that does not heed it.
mkfifo "$work/stdout"
timeout --kill-after=10 10m "${serve[@]}" > "$work/stdout" 2> "$work/stderr" &
server=$!
exec 3< "$work/stdout"
ready=''
read -r -t "$deadline_s" ready <&3 || true
case "$ready" in
    'READY address='*) ;;
    *)
        printf 'The server printed "%s" instead of its READY line; its stderr:\n' "$ready" >&2
        cat "$work/stderr" >&2
        exit 1
        ;;
esac
if ! cases --grpc-address "${ready#READY address=}"; then
    echo "The server's stderr:" >&2
    cat "$work/stderr" >&2
    exit 1
fi
