#!/usr/bin/env bash
# What every launcher does when a training ends: the table in launch/README.md. The launchers source this file.
# WORKDIR is the workdir of the run, a folder or gs://BUCKET/DIR.

# Ends in a row without a new checkpoint, after which a launcher stops. 75 is no failure, but the run may be in use
# elsewhere for ever, or its bucket unreachable.
MAX_FAILURES=${MAX_FAILURES:-5}
MAX_STOPS=${MAX_STOPS:-100}
highest=-1 failures=0 stops=0

# Prints a workdir as Python writes it, which expands ~ and drops repeated and final slashes and `.`. A quoted ~ stays one in a
# shell, and to a bucket gs://BUCKET/DIR/ is another folder than gs://BUCKET/DIR: no checkpoint would be found in it.
normalized() {
  local path=$1
  # shellcheck disable=SC2088
  case $path in '~' | '~/'*) path=$HOME${path#\~} ;; esac
  sed -E 's#^(\./+)+(.)#\2#; :a; s#([^:/])/+\.(/|$)#\1\2#; ta; s|([^:/])/+|\1/|g; s|(.)/+$|\1|' <<<"$path"
}

storage() { timeout --kill-after=10 "${STORAGE_SECONDS:-120}" gcloud storage "$@" --quiet; }

# Prints what the exit codes of all processes of a training mean together: finished, stopped, final or failed. 2 and 3
# are final if no process ended in another way than 0: a peer that died, or a network that failed in one process only,
# may be the reason for what the others found.
meaning() {
  local code final='' stopped='' failed=''
  for code; do
    case $code in
      0) ;;
      75) stopped=stopped ;;
      2 | 3) final=final ;;
      *) failed=failed ;;
    esac
  done
  [[ -z $final || -z $stopped ]] || failed=failed
  echo "${failed:-${final:-${stopped:-finished}}}"
}

# Prints the step of the newest complete checkpoint, -1 if there is none or the workdir cannot be read. Seeds,
# folds and the combinations of a sweep have a workdir each, and start again at step 0: their checkpoints are added up,
# each counted from 1. On a disk, a checkpoint gets its name when it is complete. In a bucket, its name comes with the first file and a
# mark with the last.
newest_checkpoint() {
  case $WORKDIR in
    gs://*)
      {
        storage ls "$WORKDIR/checkpoints/*/commit_success.txt" 2>/dev/null || true
        storage ls "$WORKDIR/*/checkpoints/*/commit_success.txt" 2>/dev/null || true
      } | sed 's|/[^/]*$||'
      ;;
    *) printf '%s\n' "$WORKDIR"/checkpoints/* "$WORKDIR"/*/checkpoints/* ;;
  esac | awk -F/ '
    $NF ~ /^[0-9]+$/ { step = $NF; sub("/[^/]*$", ""); if (step >= saved[$0]) saved[$0] = step + 1 }
    END { for (folder in saved) total += saved[folder]; print total - 1 }'
}

# Whether the newest checkpoint is newer than all before; if so, what was counted is forgotten.
has_moved() {
  local newest
  newest=$(newest_checkpoint)
  ((newest > highest)) || return 1
  highest=$newest failures=0 stops=0
}

# Whether to run the same command again after this end (a word of `meaning`). Counts the ends without a new checkpoint.
run_again() {
  [[ $1 != finished && $1 != final ]] || return 1
  has_moved && return
  case $1 in
    stopped) ((++stops < MAX_STOPS)) ;;
    *) ((++failures < MAX_FAILURES)) ;;
  esac
}

# Waits for a process and sets code. A trap that sets `signaled` ends a wait, but not the process, which is saving.
wait_for() {
  while :; do
    signaled='' code=0
    wait "$1" || code=$?
    [[ -n $signaled ]] || return 0
  done
}

# Runs a command, passes SIGTERM on to it, and sets code. A command may get the signal twice, which does no harm with
# --distributed.
run_training() {
  signaled='' training=''
  trap 'signaled=yes; stop_training' TERM
  "$@" &
  training=$!
  [[ -z $signaled ]] || stop_training # the signal came before the training could be told
  wait_for "$training"
}

stop_training() { [[ -z $training ]] || kill -TERM "$training" 2>/dev/null || true; }

# A launcher that does not outlive a restart keeps the counts in the workdir. Every process reads them before it starts
# and writes them after its end, so that all write the same.
read_counts() {
  local counts=''
  case $WORKDIR in
    gs://*) counts=$(storage cat "$WORKDIR/launcher_counts" 2>/dev/null) || true ;;
    *) counts=$(cat "$WORKDIR/launcher_counts" 2>/dev/null) || true ;;
  esac
  [[ $counts =~ ^-?[0-9]+\ [0-9]+\ [0-9]+$ ]] || counts="$(newest_checkpoint) 0 0"
  read -r highest failures stops <<<"$counts"
}

write_counts() {
  case $WORKDIR in
    gs://*) storage cp - "$WORKDIR/launcher_counts" <<<"$highest $failures $stops" ;;
    *) mkdir -p "$WORKDIR" && echo "$highest $failures $stops" >"$WORKDIR/launcher_counts" ;;
  esac || echo "cannot count in $WORKDIR/launcher_counts; check the rights" >&2
}

# `run_again` for such a launcher, after the exit codes of all processes.
wants_restart() {
  local end again=yes
  end=$(meaning "$@")
  [[ $end != finished ]] || return 1
  run_again "$end" || again=no
  echo "the training $end with exit code $*; without a new checkpoint: $failures failures, $stops stops in a row"
  # Who starts it next is a person, who has seen why it stopped.
  [[ $again == yes ]] || failures=0 stops=0
  write_counts
  [[ $again == yes ]]
}
