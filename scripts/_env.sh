# Sourced by the other scripts. Changes to the project's root, removes --install from the arguments, and defines
#   use_venv EXTRA     .venv with `-e .[EXTRA]` as pinned in constraints.txt; created, or updated after a change, but
#                      used as it is with TXSTORM_VENV=keep (tests of scripts)
#   need_java          Java 17 or newer
#   need_redis         redis-server
#   adopt ARGUMENT...  restarts the script with these arguments such that orphans of its processes are counted, too
#   stage NAME CMD...  runs a command, reports its result, duration and processor time, remembers failures
#   beside NAME CMD... starts a stage that runs beside the next one, and is reported when that has ended
#   simulated COUNT    runs simulated worlds
#   topologies COUNT   runs simulated worlds of whole topologies
#   finish             lists the stages with the times of each; exit code 1 when one failed
# Set-up messages go to standard error: standard output belongs to the caller (--json).

cd "$(dirname "${BASH_SOURCE[0]}")/.."

export SPARK_LOCAL_IP=127.0.0.1 # otherwise Spark asks for the machine's name, which need not resolve

install=${CI:-false}
arguments=()
for argument in "$@"; do
    if [[ $argument == --install ]]; then install=true; else arguments+=("$argument"); fi
done
set -- ${arguments[@]+"${arguments[@]}"}

say() { echo "$@" >&2; }
die() { say "error: $*"; exit 1; }

# --- system packages --------------------------------------------------------------------------------------------------

# get WHAT APT_PACKAGE BREW_PACKAGE: installs the package if allowed; otherwise prints the command and stops
get() {
    if ! command -v apt-get >/dev/null; then
        command -v brew >/dev/null && die "$1 is missing. Install it: brew install $3"
        die "$1 is missing. Install it with your system's package manager."
    fi
    local command="apt-get update && apt-get install -y --no-install-recommends $2"
    if [[ $(id -u) != 0 ]]; then die "$1 is missing. Install it: sudo sh -c '$command'"; fi
    if [[ $install != true ]]; then die "$1 is missing. Install it: $command   (or run this script with --install)"; fi
    say "installing $1: $command"
    DEBIAN_FRONTEND=noninteractive sh -c "$command" >&2 || die "could not install $1"
}

# --- Java -------------------------------------------------------------------------------------------------------------

has_java() {
    local java=java version
    if [[ -n ${JAVA_HOME:-} ]]; then java=$JAVA_HOME/bin/java; fi
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p') # nothing before Java 9 counts: "1.8"
    [[ ${version:-0} -ge 17 ]]
}

need_java() {
    if has_java; then return; fi
    if [[ -n ${JAVA_HOME:-} ]]; then die "JAVA_HOME=$JAVA_HOME is no Java 17 or newer. Unset it or point it to one."; fi
    local package=openjdk-17-jre-headless # Ubuntu's default may be older, a Debian need not have exactly 17
    if grep -qs '^ID=debian' /etc/os-release; then package=default-jre-headless; fi
    get "Java 17 or newer" "$package" openjdk@17
    has_java || die "Java 17 or newer is still not on PATH"
}

need_redis() {
    command -v redis-server >/dev/null || get redis-server redis-server redis
}

# --- Python -----------------------------------------------------------------------------------------------------------

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
can_make_venv="import ensurepip, venv; $new_enough"

# find_python PROGRAM: prints the first Python that runs it; tested versions come first, as python3 may be an empty shim
find_python() {
    local name
    for name in ${PYTHON:-} python3.11 python3.12 python3 python3.13 python3.14; do
        if "$name" -c "$1" >/dev/null 2>&1; then echo "$name"; return; fi
    done
    return 1
}

need_python() {
    if find_python "$can_make_venv"; then return; fi
    local package=python3-venv python
    if python=$(find_python "$new_enough"); then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    fi
    get "Python 3.11 or newer with venv" "$package" python@3.12
    find_python "$can_make_venv" || die "no Python 3.11 or newer with venv (set PYTHON to choose one)"
}

make_venv() {
    if .venv/bin/python -m pip --version >/dev/null 2>&1; then return; fi
    local python
    python=$(need_python)
    say "making .venv with $("$python" -V)"
    "$python" -m venv --clear .venv >&2
}

# Changes whenever an installation would: with the directory (scripts in .venv/bin name it), interpreter and packages.
fingerprint() {
    {
        echo "$PWD"
        .venv/bin/python -V || true
        cat setup.cfg pyproject.toml constraints.txt txstorm/_version.py
    } 2>&1 | cksum
}

# installed EXTRA: whether .venv has this directory, and all that the extra needs, in the pinned versions
installed() {
    .venv/bin/python -c '
import configparser, re, sys
from importlib.metadata import distribution, version
from pathlib import Path
config = configparser.ConfigParser()
config.read("setup.cfg")
pins = dict(line.split("==") for line in Path("constraints.txt").read_text().splitlines() if "==" in line)
needed, extras = config["options"]["install_requires"].split(), [sys.argv[1]]
for extra in extras:
    lines = config["options.extras_require"][extra].split()
    extras += [one for line in lines if line.startswith("txstorm[") for one in line[8:-1].split(",")]
    needed += [line for line in lines if not line.startswith("txstorm[")]
names = [re.match(r"[A-Za-z0-9_.-]+", line)[0] for line in needed]
own = distribution("txstorm")
commands = {line for lines in config["options.entry_points"].values() for line in lines.split("\n") if line}
same = commands == {f"{one.name} = {one.value}" for one in own.entry_points}
here = Path.cwd().as_uri() in own.read_text("direct_url.json") and own.version in Path("txstorm/_version.py").read_text()
sys.exit(not (same and here and all(version(name) == pins[name] for name in names)))
' "$1" >/dev/null 2>&1
}

use_venv() {
    local stamp=.venv/.txstorm-$1
    if [[ ${TXSTORM_VENV:-} == keep ]]; then return; fi
    if [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" ]]; then return; fi
    if ! installed "$1"; then
        make_venv
        say "installing txstorm[$1] into .venv (the first time some minutes: Spark alone is 450 MB)"
        .venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[$1]" >&2
    fi
    fingerprint | tee "$stamp" ".venv/.txstorm-spark" >/dev/null # every extra used here includes spark
}

# --- stages -----------------------------------------------------------------------------------------------------------

failed=()
stages=()

adopt() {
    local python
    if [[ -n ${TXSTORM_ADOPTER:-} || ! -r /proc/$$/stat ]]; then return; fi
    python=$(find_python "import ctypes; ctypes.CDLL(None).prctl") || return 0
    if [[ $install == true ]]; then set -- --install "$@"; fi
    exec "$python" scripts/_adopter.py "scripts/${0##*/}" "$@"
}

# processor_seconds [PID]: prints those of a process and of all its children that have ended; by default those of this
# script, orphans included if adopted
processor_seconds() {
    local files=("/proc/${1:-$$}/stat")
    if [[ -z ${1:-} && ${TXSTORM_ADOPTER:-} == "$PPID" ]]; then files+=("/proc/$PPID/stat"); fi
    # After the name: user and system time, then those of children that have been waited for.
    awk -v ticks="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); sum += $12 + $13 + $14 + $15 } END { printf "%d", sum / ticks }' \
        "${files[@]}" 2>/dev/null || echo 0
}

# await_orphans: waits some seconds for adopted processes that are about to end
await_orphans() {
    local children tries
    if [[ ${TXSTORM_ADOPTER:-} != "$PPID" ]]; then return; fi
    for tries in {1..50}; do
        read -r -a children < <(cat "/proc/$PPID/task/$PPID/children" 2>/dev/null && echo) || return 0
        if [[ ${#children[@]} -le 1 ]]; then return; fi
        sleep 0.1
    done
}

# ended NAME OUTCOME SECONDS PROCESSOR_SECONDS: reports a stage
ended() {
    if [[ $2 == FAILED ]]; then failed+=("$1"); fi
    stages+=("$1: $2 ($3 s, $4 processor s)")
    echo "== ${stages[-1]}"
}

beside() {
    companion=$1 results=$(mktemp -d)
    shift
    (
        trap - EXIT
        me=$BASHPID outcome=ok # in $() it would be another process
        "$@" >"$results/output" 2>&1 || outcome=FAILED
        echo "$outcome $SECONDS $(processor_seconds "$me")" >"$results/outcome"
    ) &
    companion_pid=$! companion_start=$SECONDS
}

# end_companion: waits for the stage that `beside` has started, reports it, and sets `spent_beside` to its processor seconds
end_companion() {
    local outcome=FAILED end=$SECONDS
    spent_beside=0
    if [[ -z ${companion:-} ]]; then return; fi
    wait "$companion_pid" || true
    read -r outcome end spent_beside <"$results/outcome" || true
    echo "== $companion"
    cat "$results/output"
    ended "$companion" "$outcome" $((end - companion_start)) "$spent_beside"
    rm -r "$results"
    companion=
}

stage() {
    local name=$1 start=$SECONDS spent outcome=ok duration spent_beside
    spent=$(processor_seconds)
    shift
    echo "== $name"
    "$@" || outcome=FAILED
    duration=$((SECONDS - start))
    end_companion
    await_orphans
    ended "$name" "$outcome" "$duration" $(($(processor_seconds) - spent - spent_beside))
}

# simulated COUNT [OPTION...]: runs COUNT schedules of the simulated worlds, on all processors
simulated() {
    local count=$1
    shift
    .venv/bin/python -m txstorm simulate --json --seed "${TXSTORM_SIMULATION_SEED:-0}" --schedules "$count" \
        --processes "$(getconf _NPROCESSORS_ONLN)" "$@"
}

# topologies COUNT [OPTION...]: runs COUNT schedules of worlds of whole topologies, fewer of the kinds that cost more
topologies() {
    local count=$1 kind
    shift
    for kind in "33 counts" "33 stateful_world:StatefulWorld" "23 windows_world:WindowsWorld" "11 join_world:JoinWorld"; do
        echo "   ${kind#* }"
        PYTHONPATH=tests/helpers:tests/worlds:tests/stateful \
            simulated $((count * ${kind%% *} / 100)) --kind "${kind#* }" "$@" || return 1
    done
}

finish() {
    echo "== all stages: $SECONDS s, $(processor_seconds) processor s"
    printf '   %s\n' "${stages[@]}"
    if [[ ${#failed[@]} -gt 0 ]]; then echo "== failed: ${failed[*]}"; exit 1; fi
}
