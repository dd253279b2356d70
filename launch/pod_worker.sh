#!/usr/bin/env bash
# The part of tpu_pod.sh that runs on every worker of a slice.
set -euo pipefail

usage="usage: pod_worker.sh install|start|status|stop [ARGUMENT...]
The part of tpu_pod.sh that runs on every worker of a slice; run tpu_pod.sh on your own machine.
  install COMMIT          install code/ and the locked packages into venv/, once per commit
  start LOGS ARGUMENT...  run venv/bin/python ARGUMENT... detached from the connection; its log is copied to LOGS
  status                  print bertjax-status and running, an exit code, or lost (no exit code: a reboot)
  stop                    send SIGTERM, after which the training saves; SIGKILL after STOP_SECONDS
It writes only to ~/bertjax: code/, venv/, train.log, exit_code."

case ${1:-} in
  -h | --help) echo "$usage"; exit 0 ;;
  install | start | status | stop | hold) ;; # hold is what start runs in the background
  *) echo "'${1:-}' is not a command of pod_worker.sh"$'\n'"$usage" >&2; exit 2 ;;
esac
# shellcheck source=restarts.sh
source "$(dirname "${BASH_SOURCE[0]}")/restarts.sh"
cd "$HOME/bertjax"

# Only the training's processes hold the lock, so it is free as soon as they are gone, however they ended.
running() { ! flock --nonblock lock true; }

install() {
  # There is no repository here: this file is how a run knows the commit of its code.
  echo "$1" >code/bertjax/COMMIT
  [[ ! -e installed || $(<installed) != "$1" ]] || return 0
  # A new VM may still be updating itself, which locks apt; its own Python may be older than 3.11.
  command -v pipx >/dev/null || {
    sudo apt-get -q -o DPkg::Lock::Timeout=600 update
    sudo apt-get -q -o DPkg::Lock::Timeout=600 install -y pipx
  }
  rm -rf venv installed # what is installed is unknown until all of it is
  pipx run uv venv --quiet --python 3.11 --seed venv
  venv/bin/pip install --quiet --require-hashes --no-deps -r code/launch/requirements-tpu.lock
  venv/bin/pip install --quiet --no-deps --no-build-isolation ./code
  echo "$1" >installed
}

start() {
  exec 9>lock
  flock --nonblock 9 || { echo "the training is already running on $(hostname)"; return 0; }
  rm -f exit_code
  set -a # ENVIRONMENT of the settings
  # shellcheck source=/dev/null
  source code/environment
  set +a
  setsid bash code/launch/pod_worker.sh hold "$@" >>train.log 2>&1 </dev/null &
}

copy_log() {
  storage cp train.log "$1.log" || echo "cannot copy train.log to $1.log; check that the VM may write to the bucket"
}

# A preemption may come without a warning and takes the disk, so the log leaves the VM while the training runs.
copy_often() {
  while sleep "${LOG_SECONDS:-300}"; do copy_log "$1"; done
}

hold() {
  local logs copying
  logs=$1/$(hostname)-$(date -u +%Y%m%dT%H%M%SZ)
  shift
  echo $$ >pid
  copy_often "$logs" 9>&- &
  copying=$!
  run_training env --chdir=code ../venv/bin/python "$@"
  kill "$copying" || true # it may have been killed, for example for lack of memory
  # The exit code is written last, because the VM may be deleted once it is there.
  copy_log "$logs"
  echo "$code" >exit_code
}

status() {
  if running; then
    echo "bertjax-status running"
  elif [[ -e exit_code ]]; then
    echo "bertjax-status $(<exit_code)"
  else
    echo "bertjax-status lost"
  fi
}

stop() {
  running || return 0
  kill -TERM "$(<pid)" || true
  timeout "${STOP_SECONDS:-120}" flock lock true || kill -KILL -- "-$(<pid)"
}

"$@"
