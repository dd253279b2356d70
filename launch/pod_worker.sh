#!/usr/bin/env bash
# The part of tpu_pod.sh that runs on every worker of a slice. It writes only to ~/bertjax: code/, venv/, train.log,
# exit_code.
#
#   install COMMIT          install code/ into venv/, once per commit
#   start LOGS ARGUMENT...  run venv/bin/python ARGUMENT... detached from the connection
#   status                  print "bertjax-status" and running, an exit code, or lost (no exit code: a reboot)
#   stop                    send SIGTERM, after which the training saves; SIGKILL after STOP_SECONDS
set -euo pipefail
cd "$HOME/bertjax"

# Only the training's processes hold the lock, so it is free as soon as they are gone, however they ended.
running() { ! flock --nonblock lock true; }

install() {
  [[ ! -e installed || $(<installed) != "$1" ]] || return 0
  # A new VM may still be updating itself, which locks apt; its own Python may be older than 3.11.
  command -v pipx >/dev/null || {
    sudo apt-get -q -o DPkg::Lock::Timeout=600 update
    sudo apt-get -q -o DPkg::Lock::Timeout=600 install -y pipx
  }
  rm -rf venv
  pipx run uv venv --quiet --python 3.11 --seed venv
  venv/bin/pip install --quiet './code[tpu,gcs]'
  echo "$1" >installed
}

start() {
  exec 9>lock
  flock --nonblock 9 || { echo "the training is already running on $(hostname)"; return 0; }
  rm -f exit_code
  setsid bash code/launch/pod_worker.sh hold "$@" >>train.log 2>&1 </dev/null &
}

hold() {
  local logs=$1 code=0 training
  shift
  echo $$ >pid
  (cd code && exec ../venv/bin/python "$@") &
  training=$!
  trap 'kill -TERM "$training"' TERM
  wait "$training" || code=$?
  # A signal ends the first wait but not the training, which is saving.
  while kill -0 "$training" 2>/dev/null; do
    code=0
    wait "$training" || code=$?
  done
  # The disk is lost with the VM. The exit code is written last, because the VM may be deleted once it is there.
  timeout 60 gcloud storage cp --quiet train.log "$logs/$(hostname)-$(date -u +%Y%m%dT%H%M%SZ).log" ||
    echo "cannot copy train.log to $logs; check that the VM may write to the bucket"
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
