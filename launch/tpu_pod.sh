#!/usr/bin/env bash
# Pretrains on a Cloud TPU VM or pod from a queued resource: see launch/README.md and docs/guides/trc.md.
#
# Sources: "Manage queued resources" and "Request TPU Spot VMs" of the Cloud TPU documentation; QueuedResourceState and
# the field `force` of queuedResources.delete in its REST reference (v2); gcloud reference, `compute tpus
# queued-resources create|describe|delete` and `compute tpus tpu-vm ssh|scp|describe`.
set -euo pipefail

usage="usage: tpu_pod.sh check|up|run|status|logs|down|babysit [FILE]
  check    look at everything that needs no TPU: settings, configuration, login, project, zone, bucket, corpus
  up       request the TPU and wait until it is ready
  run      install bertjax on every worker and start the training; it continues if the connection is lost
  status   print the queued resource, the workers and the last line of the log
  logs     print the last 100 lines of worker 0 (WORKER=all: of each worker; FOLLOW=yes: keep printing)
  down     stop the training, which saves, and delete the TPU
  babysit  up and run, again after every preemption, until the training has finished or cannot; then down
FILE holds the settings (default: launch/pod.env); copy launch/pod.env.example to start one."

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=restarts.sh
source "$here/restarts.sh"
# shellcheck source=pod_check.sh
source "$here/pod_check.sh"
POLL=${POLL:-30}                  # seconds between two checks
PATIENCE=${PATIENCE:-10}          # checks in a row that find workers silent or only partly running, before it fails
BACKOFF=${BACKOFF:-30}            # seconds to wait after a failed attempt, doubled after each further one
BACKOFF_LIMIT=${BACKOFF_LIMIT:-600}
# Seconds after which a training whose heartbeat.json did not change is restarted; three times as many while it does not
# train (start, compilation, evaluation, saving). A training that hangs ends itself after runtime.hang_timeout. This is
# for one that cannot, so it is longer.
HANG_SECONDS=${HANG_SECONDS:-1800}
QUICK=${QUICK:-300}               # limit in seconds of a call of gcloud that asks
SLOW=${SLOW:-1800}                # the same of one that creates, deletes, copies or installs

log() { echo "tpu_pod: $*" >&2; }
bad_input() { log "$*"; exit 2; }

# Runs a command for at most that many seconds (0: no limit), because a call that never returns would end the watch over
# the TPU. `timeout` takes it out of the foreground, where reading the terminal, as ssh does, would stop it: hence
# /dev/null, and the trap: Ctrl-C reaches only this shell.
limited() {
  local code=0
  if [[ $1 == 0 ]]; then
    "${@:2}" </dev/null
    return
  fi
  # First the trap: a Ctrl-C in between would leave the call running, and this script waiting for its output.
  trap 'kill %% 2>/dev/null || true; exit 130' INT
  timeout --kill-after=10 "$@" </dev/null &
  wait $! || code=$?
  trap 'exit 130' INT
  ((code != 124 && code != 137)) || log "no answer within $1 s from: ${*:2:5}"
  return "$code"
}

read_settings() {
  local file=$1 setting
  [[ -r $file ]] || bad_input "$file cannot be read; copy $here/pod.env.example there and fill it in"
  SPOT=yes REF=HEAD ARGS=() ENVIRONMENT=() CREATE_FLAGS=() AFTER_FAILURE=delete
  # shellcheck source=pod.env.example
  source "$file"
  for setting in NAME PROJECT ZONE ACCELERATOR_TYPE RUNTIME_VERSION CONFIG WORKDIR; do
    [[ -n ${!setting:-} ]] || bad_input "$setting is not set in $file; pod.env.example explains it"
  done
  [[ $SPOT == yes || $SPOT == no ]] || bad_input "SPOT=$SPOT in $file is unknown; choose yes or no"
  [[ $AFTER_FAILURE == delete || $AFTER_FAILURE == keep ]] ||
    bad_input "AFTER_FAILURE=$AFTER_FAILURE in $file is unknown; choose delete or keep"
  WORKDIR=$(normalized "$WORKDIR")
  [[ $WORKDIR == gs://?* ]] || bad_input "WORKDIR=$WORKDIR in $file is not gs://BUCKET/DIR; a VM's disk is lost with it"
  command -v gcloud >/dev/null || bad_input "gcloud is not installed; see https://cloud.google.com/sdk/docs/install"
  COMMIT=$(git -C "$here" rev-parse --quiet --verify "$REF^{commit}") ||
    bad_input "REF=$REF in $file is not a commit of the checkout that contains $here; git log lists the commits"
  git -C "$here/.." cat-file -e "$COMMIT:${CONFIG%%:*}" 2>/dev/null ||
    bad_input "CONFIG=$CONFIG in $file is not in $REF; commit the file: workers get committed files only"
  for setting in ${ENVIRONMENT[@]+"${ENVIRONMENT[@]}"}; do
    [[ $setting =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || bad_input "ENVIRONMENT in $file has '$setting', not NAME=VALUE"
  done
}

# Workers get committed files. An older REF is chosen on purpose; with the newest one, changed files would silently not
# be what runs.
refuse_changes() {
  [[ $COMMIT != "$(git -C "$here" rev-parse HEAD)" ]] ||
    git -C "$here/.." diff --quiet HEAD -- bertjax configs setup.py pyproject.toml launch/pod_worker.sh \
      launch/restarts.sh launch/requirements-tpu.lock ||
    bad_input "files differ from REF=$REF, which is what workers run; commit them (git status), or set REF to a commit"
}

# tpu SECONDS ARGUMENT... and on_workers SECONDS WORKER COMMAND
tpu() { limited "$1" gcloud compute tpus "${@:2}" --project="$PROJECT" --zone="$ZONE" --quiet; }
on_workers() { tpu "$1" tpu-vm ssh "$NAME" --worker="$2" --command="$3"; }
worker_script="bash bertjax/code/launch/pod_worker.sh"

log_login() { log "gcloud is not logged in, or its login has expired; run: gcloud auth login"; }
# Whether that is the last error: gcloud then names this command.
is_logged_out() { grep -q 'gcloud auth login' "$scratch/error"; }

# Other errors, as of the network, are left to the calls that need an answer.
require_login() {
  limited "$QUICK" gcloud auth print-access-token --quiet >/dev/null 2>"$scratch/error" || ! is_logged_out ||
    { log_login; exit 2; }
}

# Prints the queued resource's state: NONE if it does not exist, UNKNOWN if gcloud fails, PREEMPTED if its VM is.
state() {
  local answer
  if answer=$(tpu "$QUICK" queued-resources describe "$NAME" --format='value(state.state)' 2>"$scratch/error"); then
    [[ $answer != ACTIVE || $(tpu "$QUICK" tpu-vm describe "$NAME" --format='value(state)' 2>/dev/null) != PREEMPTED ]] ||
      answer=PREEMPTED
    echo "${answer:-UNKNOWN}"
  elif grep -q NOT_FOUND "$scratch/error"; then
    echo NONE
  elif is_logged_out; then
    log_login
    echo UNKNOWN
  else
    cat "$scratch/error" >&2
    echo UNKNOWN
  fi
}

log_unknown() { log "gcloud cannot tell whether $NAME exists, see above; check PROJECT and ZONE"; }

remove() {
  local now attempt
  for ((attempt = 0; attempt < PATIENCE; attempt++)); do
    now=$(state)
    [[ $now != NONE ]] || return 0
    log "deleting $NAME ($now)"
    # Without --force only a request without a VM can be deleted. While it is SUSPENDING, gcloud may refuse.
    tpu "$SLOW" queued-resources delete "$NAME" --force || sleep "$POLL"
  done
  log "$NAME could not be deleted and may cost money; see https://console.cloud.google.com/compute/tpus"
  return 1
}

# Returns 75 if there is no TPU now but the same request may succeed later: it was accepted and failed, as requests for
# spot TPUs often do, or the quota is used up, or the API fails. Returns 2 if the request itself is wrong.
up() {
  local now before='' request=(--node-id="$NAME" --accelerator-type="$ACCELERATOR_TYPE")
  request+=(--runtime-version="$RUNTIME_VERSION")
  [[ $SPOT == no ]] || request+=(--spot)
  request+=(${CREATE_FLAGS[@]+"${CREATE_FLAGS[@]}"})
  now=$(state)
  case $now in
    UNKNOWN) log_unknown; return 75 ;;
    FAILED | SUSPENDING | SUSPENDED | PREEMPTED | DELETING) remove && now=NONE || return 75 ;;
  esac
  if [[ $now == NONE ]]; then
    log "requesting $ACCELERATOR_TYPE in $ZONE as $NAME"
    if ! tpu "$SLOW" queued-resources create "$NAME" "${request[@]}" 2>"$scratch/error"; then
      cat "$scratch/error" >&2
      if grep -q INVALID_ARGUMENT "$scratch/error"; then
        log "the request is wrong ($(sed -n 's/^ERROR: ([^)]*) *//; /INVALID_ARGUMENT/{p;q}' "$scratch/error"));" \
          "correct ACCELERATOR_TYPE, RUNTIME_VERSION or ZONE"
        return 2
      fi
      log "Google Cloud refused the request: quota, rights or its API, see above; this is not a failure of the training"
      return 75
    fi
  fi
  while now=$(state); do
    [[ $now == "$before" ]] || log "$NAME is $now ($(date -u +%H:%M:%S) UTC)"
    before=$now
    case $now in
      ACTIVE) return 0 ;;
      FAILED)
        log "reason: $(tpu "$QUICK" queued-resources describe "$NAME" --format='value(state.failedData.error.message)')"
        return 75
        ;;
      NONE | SUSPENDING | SUSPENDED | PREEMPTED) return 75 ;;
    esac
    sleep "$POLL"
  done
}

# Prints what the workers answer, each answer once: running, absent (a new VM), lost, an exit code; or unreachable.
workers() {
  local answers
  answers=$(on_workers "$QUICK" all "$worker_script status 2>/dev/null || echo bertjax-status absent" \
    2>"$scratch/error") || { echo unreachable; return; }
  answers=$(sed -n 's/^.*bertjax-status //p' <<<"$answers" | sort -u | xargs)
  echo "${answers:-unreachable}"
}

# Prints one word for the answers of all workers: running, partly, unreachable, absent, lost, or a word of `meaning`.
outcome_of() {
  case " $* " in
    " running " | " unreachable ") echo "$1" ;;
    *" running "*) echo partly ;;
    *" absent "*) echo absent ;;
    *" lost "*) echo lost ;;
    *) meaning "$@" ;;
  esac
}

stop_workers() { on_workers "$QUICK" all "[ ! -e bertjax/code ] || $worker_script stop"; }

run() {
  local command=(-m bertjax.train --distributed --config="$CONFIG" --workdir="$WORKDIR" ${ARGS[@]+"${ARGS[@]}"}) now
  local setting
  earlier=$(heartbeats)
  now=$(state)
  [[ $now == ACTIVE ]] || { log "$NAME is $now; run tpu_pod.sh up first"; return 1; }
  # shellcheck disable=SC2046
  case $(outcome_of $(workers)) in
    running) log "the training is already running on $NAME"; return 0 ;;
    partly) stop_workers || return 1 ;;
  esac
  log "installing ${COMMIT:0:12} on the workers of $NAME"
  # In a file, since $scratch is private: command lines are visible to everyone on a machine, and gcloud logs them.
  for setting in ${ENVIRONMENT[@]+"${ENVIRONMENT[@]}"}; do
    printf '%s=%q\n' "${setting%%=*}" "${setting#*=}"
  done >"$scratch/environment"
  (umask 077 && git -C "$here/.." archive --format=tar.gz --add-file="$scratch/environment" \
    --output="$scratch/bertjax.tar.gz" "$COMMIT") || return 1
  tpu "$SLOW" tpu-vm scp "$scratch/bertjax.tar.gz" "$NAME:" --worker=all || return 1
  on_workers "$SLOW" all "rm -rf bertjax/code && mkdir -p bertjax/code &&
    (umask 077 && tar -xzf bertjax.tar.gz --no-same-permissions -C bertjax/code) && rm bertjax.tar.gz &&
    $worker_script install $COMMIT" || return 1
  on_workers "$QUICK" all "$worker_script start $(printf '%q ' "$WORKDIR/worker_logs" "${command[@]}")" ||
    return 1
  log "started: python ${command[*]}"
}

logs() {
  local follow='' seconds=$QUICK
  [[ ${FOLLOW:-no} != yes ]] || follow=-f seconds=0
  on_workers "$seconds" "${WORKER:-0}" "tail -n ${1:-100} $follow bertjax/train.log"
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

# Prints the heartbeat of the run, or those of its seeds or folds: one that has finished or waits does not change its own.
heartbeats() {
  storage cat "$WORKDIR/heartbeat.json" 2>/dev/null || true
  storage cat "$WORKDIR/*/heartbeat.json" 2>/dev/null || true
}

# Whether heartbeat.json has not changed for too long, by the clock of this machine alone. A file that cannot be read
# means nothing: the training may not have written one yet, or this machine has no network. One that is as before this
# attempt ($earlier) may be of a start that was training when it was killed, while this one still opens its data.
hangs() {
  local now limit=$((3 * HANG_SECONDS))
  now=$(heartbeats)
  [[ -n $now ]] || return 1
  if [[ $now != "$heartbeat" ]]; then
    heartbeat=$now beat=$SECONDS
    return 1
  fi
  [[ $now == "$earlier" || $now != *'"training"'* ]] || limit=$HANG_SECONDS
  ((SECONDS - beat > limit))
}

# Waits for the end of a training and sets answers, and outcome: a word of `outcome_of`, hanging, "gone" if the TPU is
# gone, "deleted" if someone deleted it. A preempted queued resource stays, as SUSPENDED. This function runs in the
# script itself, because a subshell could outlive the script.
watch_training() {
  local unclear=0 heartbeat='' beat=$SECONDS
  while sleep "$POLL"; do
    outcome=$(state)
    case $outcome in
      ACTIVE)
        answers=$(workers)
        # shellcheck disable=SC2086
        outcome=$(outcome_of $answers)
        ;;
      UNKNOWN) continue ;; # no network here or an expired login: the training may still run
      NONE | DELETING) outcome=deleted ;;
      *) outcome=gone ;;
    esac
    case $outcome in
      running)
        unclear=0
        ! hangs || { outcome=hanging; log "no sign of life: $heartbeat"; stop_workers || true; return 0; }
        ;;
      partly | unreachable) ((++unclear < PATIENCE)) || return 0 ;;
      *) return 0 ;;
    esac
  done
}

# Ends babysit with a code. A TPU that nobody looks at is deleted, unless the settings keep it.
give_up() {
  local code=$1
  shift
  log "$*"
  if [[ $(state) == NONE ]]; then
    :
  elif [[ $AFTER_FAILURE == keep ]]; then
    log "AFTER_FAILURE=keep: $NAME still exists and may cost money; see tpu_pod.sh logs, then run tpu_pod.sh down"
  else
    log "deleting the TPU; the logs of the workers are in $WORKDIR/worker_logs, and AFTER_FAILURE=keep would keep it"
    down
  fi
  exit "$code"
}

babysit() {
  local pause=$BACKOFF outcome answers end earlier=''
  [[ $(state) != UNKNOWN ]] || { log_unknown; exit 1; }
  has_moved || true
  while :; do
    until [[ $(state) != UNKNOWN ]]; do sleep "$POLL"; done
    outcome='not started' answers=''
    if up; then
      if run; then watch_training; elif [[ $(state) != ACTIVE ]]; then outcome=gone; fi
    else
      case $? in 2) outcome=refused ;; *) outcome='no TPU' ;; esac
    fi
    end=failed
    case $outcome in
      finished) log "the training has finished"; down; return ;;
      final)
        logs 3 || true
        [[ " $answers " != *" 2 "* ]] ||
          give_up 2 "bad input, see above: correct the settings or the files, then run babysit again"
        give_up 3 "failed twice at the same step, see above: read its last lines, then run babysit again"
        ;;
      refused) return 2 ;;
      deleted) log "$NAME was deleted by someone else; stopping"; return 1 ;;
      gone | stopped) log "preempted or stopped ($outcome); continuing"; end=$outcome ;;
      'no TPU') log "requesting again" ;;
      unreachable) log "no worker answers: $(tail -n 1 "$scratch/error")"; remove || true ;;
      *)
        log "the training failed (${answers:-$outcome}; $outcome)"
        [[ $outcome == 'not started' ]] || logs 3 || true
        ;;
    esac
    case $outcome in
      gone)
        has_moved || true
        pause=$BACKOFF
        continue
        ;;
      'no TPU') ;;
      *)
        run_again "$end" || give_up 1 "giving up after $((failures + stops)) ends in a row without a new checkpoint"
        ((failures + stops > 0)) || { pause=$BACKOFF; continue; }
        log "$failures failures and $stops stops in a row without a new checkpoint"
        ;;
    esac
    log "retrying in $pause s"
    sleep "$pause"
    pause=$((2 * pause < BACKOFF_LIMIT ? 2 * pause : BACKOFF_LIMIT))
  done
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { echo "$usage"; exit 0; }
(($# == 1 || $# == 2)) || bad_input "$usage"
case $1 in
  check | up | run | status | logs | down | babysit) ;;
  *) bad_input "$1 is not a command of tpu_pod.sh; see the usage"$'\n'"$usage" ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
read_settings "${2:-$here/pod.env}"
[[ $1 == check ]] || require_login  # one of the points
case $1 in run | babysit) refuse_changes ;; esac
case $1 in logs) logs ;; *) "$1" ;; esac
