#!/usr/bin/env bash
# Pretrains on a Cloud TPU VM or pod from a queued resource: see launch/README.md and docs/guides/trc.md.
#
# Sources: "Manage queued resources" and "Request TPU Spot VMs" of the Cloud TPU documentation; QueuedResourceState and
# the field `force` of queuedResources.delete in its REST reference (v2); gcloud reference, `compute tpus
# queued-resources create|describe|delete` and `compute tpus tpu-vm ssh|scp|describe`.
set -euo pipefail

usage="usage: tpu_pod.sh up|run|status|logs|down|babysit [FILE]
  up       request the TPU and wait until it is ready
  run      install bertjax on every worker and start the training; it continues if the connection is lost
  status   print the queued resource, the workers and the last line of the log
  logs     print the last 100 lines of worker 0 (WORKER=all: of each worker; FOLLOW=yes: keep printing)
  down     stop the training, which saves, and delete the TPU
  babysit  up and run, again after every preemption, until the training has finished; then down
FILE holds the settings (default: launch/pod.env); copy launch/pod.env.example to start one."

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
POLL=${POLL:-30}                  # seconds between two checks
PATIENCE=${PATIENCE:-10}          # checks in a row that find workers silent or only partly running, before it fails
BACKOFF=${BACKOFF:-30}            # seconds to wait after a failed attempt, doubled after each further one
BACKOFF_LIMIT=${BACKOFF_LIMIT:-600}
MAX_FAILURES=${MAX_FAILURES:-5}   # babysit gives up after this many failures in a row, each within STEADY seconds
STEADY=${STEADY:-3600}

log() { echo "tpu_pod: $*" >&2; }
bad_input() { log "$*"; exit 2; }

read_settings() {
  local file=$1 setting
  [[ -r $file ]] || bad_input "$file cannot be read; copy $here/pod.env.example there and fill it in"
  SPOT=yes REF=HEAD ARGS=()
  # shellcheck source=pod.env.example
  source "$file"
  for setting in NAME PROJECT ZONE ACCELERATOR_TYPE RUNTIME_VERSION CONFIG WORKDIR; do
    [[ -n ${!setting:-} ]] || bad_input "$setting is not set in $file; pod.env.example explains it"
  done
  [[ $SPOT == yes || $SPOT == no ]] || bad_input "SPOT=$SPOT in $file is unknown; choose yes or no"
  [[ $WORKDIR == gs://?* ]] || bad_input "WORKDIR=$WORKDIR in $file is not gs://BUCKET/DIR; a VM's disk is lost with it"
  command -v gcloud >/dev/null || bad_input "gcloud is not installed; see https://cloud.google.com/sdk/docs/install"
  COMMIT=$(git -C "$here" rev-parse --quiet --verify "$REF^{commit}") ||
    bad_input "REF=$REF in $file is not a commit of the checkout that contains $here; git log lists the commits"
  git -C "$here/.." cat-file -e "$COMMIT:${CONFIG%%:*}" 2>/dev/null ||
    bad_input "CONFIG=$CONFIG in $file is not in $REF; commit the file: workers get committed files only"
}

tpu() { gcloud compute tpus "$@" --project="$PROJECT" --zone="$ZONE" --quiet; }
on_workers() { tpu tpu-vm ssh "$NAME" --worker="$1" --command="$2"; }
worker_script="bash bertjax/code/launch/pod_worker.sh"

# Prints the queued resource's state: NONE if it does not exist, UNKNOWN if gcloud fails, PREEMPTED if its VM is.
state() {
  local answer
  if answer=$(tpu queued-resources describe "$NAME" --format='value(state.state)' 2>"$scratch/error"); then
    if [[ $answer == ACTIVE && $(tpu tpu-vm describe "$NAME" --format='value(state)' 2>&1) == PREEMPTED ]]; then
      answer=PREEMPTED
    fi
    echo "${answer:-UNKNOWN}"
  elif grep -q NOT_FOUND "$scratch/error"; then
    echo NONE
  else
    cat "$scratch/error" >&2
    echo UNKNOWN
  fi
}

remove() {
  local now attempt
  for ((attempt = 0; attempt < PATIENCE; attempt++)); do
    now=$(state)
    [[ $now != NONE ]] || return 0
    log "deleting $NAME ($now)"
    # Without --force only a request without a VM can be deleted. While it is SUSPENDING, gcloud may refuse.
    tpu queued-resources delete "$NAME" --force || sleep "$POLL"
  done
  log "$NAME could not be deleted and may cost money; see https://console.cloud.google.com/compute/tpus"
  return 1
}

# Returns 75 if an accepted request failed, as requests for spot TPUs often do. The request can be repeated.
up() {
  local now before='' request=(--node-id="$NAME" --accelerator-type="$ACCELERATOR_TYPE")
  request+=(--runtime-version="$RUNTIME_VERSION")
  [[ $SPOT == no ]] || request+=(--spot)
  now=$(state)
  case $now in
    UNKNOWN) return 1 ;;
    FAILED | SUSPENDING | SUSPENDED | PREEMPTED | DELETING) remove && now=NONE || return 1 ;;
  esac
  if [[ $now == NONE ]]; then
    log "requesting $ACCELERATOR_TYPE in $ZONE as $NAME"
    tpu queued-resources create "$NAME" "${request[@]}" || return 1
  fi
  while now=$(state); do
    [[ $now == "$before" ]] || log "$NAME is $now ($(date -u +%H:%M:%S) UTC)"
    before=$now
    case $now in
      ACTIVE) return 0 ;;
      FAILED)
        log "reason: $(tpu queued-resources describe "$NAME" --format='value(state.failedData.error.message)')"
        return 75
        ;;
      NONE | SUSPENDING | SUSPENDED | PREEMPTED) return 75 ;;
    esac
    sleep "$POLL"
  done
}

# Prints one word for all workers: running, partly, absent (a new VM), lost, unreachable, or an exit code. 0 means that
# all workers finished, 75 that those that had not finished have saved and stopped.
workers() {
  local answers
  answers=$(on_workers all "$worker_script status 2>/dev/null || echo bertjax-status absent" 2>"$scratch/error") ||
    { echo unreachable; return; }
  answers=$(sed -n 's/^.*bertjax-status //p' <<<"$answers" | sort -u | xargs)
  case " $answers " in
    "  ") echo unreachable ;;
    " running " | " 0 " | " 75 ") echo "$answers" ;;
    " 0 75 ") echo 75 ;;
    *" running "*) echo partly ;;
    *" absent "*) echo absent ;;
    *" 2 "*) echo 2 ;;
    *" lost "*) echo lost ;;
    *) echo 1 ;;
  esac
}

stop_workers() { on_workers all "[ ! -e bertjax/code ] || $worker_script stop"; }

run() {
  local command=(-m bertjax.train --distributed --config="$CONFIG" --workdir="$WORKDIR" ${ARGS[@]+"${ARGS[@]}"}) now
  now=$(state)
  [[ $now == ACTIVE ]] || { log "$NAME is $now; run tpu_pod.sh up first"; return 1; }
  case $(workers) in
    running) log "the training is already running on $NAME"; return 0 ;;
    partly) stop_workers || return 1 ;;
  esac
  log "installing ${COMMIT:0:12} on the workers of $NAME"
  git -C "$here/.." archive --format=tar.gz --output="$scratch/bertjax.tar.gz" "$COMMIT" || return 1
  tpu tpu-vm scp "$scratch/bertjax.tar.gz" "$NAME:" --worker=all || return 1
  on_workers all "rm -rf bertjax/code && mkdir -p bertjax/code && tar -xzf bertjax.tar.gz -C bertjax/code &&
    $worker_script install $COMMIT" || return 1
  on_workers all "$worker_script start $(printf '%q ' "$WORKDIR/worker_logs" "${command[@]}")" || return 1
  log "started: python ${command[*]}"
}

logs() {
  local follow=''
  [[ ${FOLLOW:-no} != yes ]] || follow=-f
  on_workers "${WORKER:-0}" "tail -n ${1:-100} $follow bertjax/train.log"
}

status() {
  local now
  now=$(state)
  echo "queued resource $NAME: $now"
  [[ $now == ACTIVE ]] || return 0
  now=$(workers)
  echo "workers: $now"
  [[ $now == unreachable || $now == absent ]] || logs 1
}

down() {
  if [[ $(state) == ACTIVE ]]; then
    stop_workers || log "the workers could not be signaled to save; the last checkpoint remains"
  fi
  remove
  log "$NAME is deleted; its checkpoints are in $WORKDIR"
}

# Waits for the end of a training and sets outcome: an exit code, absent, lost, partly, unreachable, "gone" if the TPU
# is gone, "deleted" if someone deleted it. A preempted queued resource stays, as SUSPENDED. This function runs in the
# script itself, because a subshell could outlive the script.
watch_training() {
  local unclear=0
  while sleep "$POLL"; do
    outcome=$(state)
    case $outcome in
      ACTIVE) outcome=$(workers) ;;
      UNKNOWN) continue ;; # no network here or an expired login: the training may still run
      NONE | DELETING) outcome=deleted ;;
      *) outcome=gone ;;
    esac
    case $outcome in
      running) unclear=0 ;;
      partly | unreachable) ((++unclear < PATIENCE)) || return 0 ;;
      *) return 0 ;;
    esac
  done
}

babysit() {
  local failures=0 pause=$BACKOFF start outcome
  [[ $(state) != UNKNOWN ]] || exit 1
  while :; do
    until [[ $(state) != UNKNOWN ]]; do sleep "$POLL"; done
    start=$SECONDS outcome='not started'
    if up; then
      if run; then watch_training; elif [[ $(state) != ACTIVE ]]; then outcome=gone; fi
    elif (($? == 75)); then
      outcome='no TPU'
    fi
    case $outcome in
      0) log "the training has finished"; down; return ;;
      2)
        logs 3 || true
        log "bad input, see above; the TPU still exists: fix the input and run babysit again, or run tpu_pod.sh down"
        return 2
        ;;
      deleted) log "$NAME was deleted by someone else; stopping"; return 1 ;;
      gone | 75) log "preempted or stopped ($outcome); continuing" ;;
      'no TPU') log "requesting again" ;;
      unreachable) log "no worker answers: $(tail -n 1 "$scratch/error")"; remove ;;
      *) log "the training failed ($outcome)"; [[ $outcome == 'not started' ]] || logs 3 || true ;;
    esac
    if [[ $outcome == gone || $outcome == 75 ]] || ((SECONDS - start > STEADY)); then
      failures=0 pause=$BACKOFF
      continue
    fi
    if [[ $outcome != 'no TPU' ]] && ((++failures >= MAX_FAILURES)); then
      log "giving up after $failures failures in a row; the TPU may still exist: run tpu_pod.sh logs or tpu_pod.sh down"
      return 1
    fi
    log "retrying in $pause s"
    sleep "$pause"
    pause=$((2 * pause < BACKOFF_LIMIT ? 2 * pause : BACKOFF_LIMIT))
  done
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { echo "$usage"; exit 0; }
(($# == 1 || $# == 2)) || bad_input "$usage"
case $1 in
  up | run | status | logs | down | babysit) ;;
  *) bad_input "$1 is not a command of tpu_pod.sh; see the usage"$'\n'"$usage" ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
read_settings "${2:-$here/pod.env}"
case $1 in logs) logs ;; *) "$1" ;; esac
