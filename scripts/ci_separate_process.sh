#!/usr/bin/env bash
# ci_separate_process.sh BIN: runs the cases against servers in processes of their own, for each protocol and server
# library, reached both ways: started by the suite (--grpc-command), and already running (--grpc-address). BIN is the
# bin folder of an environment that has the suite installed. Leaves no process behind.
set -euo pipefail

bin=$1
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

# cases PROTOCOL ARGUMENTS: runs the cases, and wants some to pass: all not applicable would be green too.
cases() {
    local protocol=$1
    shift
    "$bin/python" -m pytest --pyargs pytest_grpc_conformance.cases -q -p no:cacheprovider --rootdir . \
        --grpc-protocol "$protocol" "$@" > "$work/out" || { cat "$work/out"; return 1; }
    tail -n 1 "$work/out"
    grep -q ' passed' "$work/out"
}

# stop: ends the server that was started here, which must heed SIGTERM and end with exit code 0.
stop() {
    kill "$server"
    wait "$server"
    server=''
    exec 3<&-
    rm "$work/stdout"
}

for protocol in openengine smg; do
    for library in grpcio pygrpc-native; do
        serve=("$bin/grpc-conformance" serve --protocol "$protocol" --server "$library" --port 0)

        echo "-- $protocol on $library, started by the suite"
        cases "$protocol" --grpc-command "$(printf '%q ' "${serve[@]}")"

        echo "-- $protocol on $library, already running"
        mkfifo "$work/stdout"
        "${serve[@]}" > "$work/stdout" 2> "$work/stderr" &
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
        if ! cases "$protocol" --grpc-address "${ready#READY address=}"; then
            echo "The server's stderr:" >&2
            cat "$work/stderr" >&2
            exit 1
        fi
        stop
    done
done
