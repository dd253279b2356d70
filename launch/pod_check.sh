#!/usr/bin/env bash
# The points of `tpu_pod.sh check`: all that can be known before a TPU costs money. tpu_pod.sh sources this file; the
# functions `limited`, `tpu` and `state`, the settings, $here and $scratch are its own.
# shellcheck disable=SC2153,SC2154
#
# Sources: gcloud reference, `projects describe`, `services list`, `compute tpus accelerator-types describe`, `compute
# tpus versions describe`, `storage buckets describe` and `storage ls`. None of them makes or changes a resource.
PYTHON=${PYTHON:-python3}     # an environment with bertjax and libtpu: pip install '.[tpu]'
# It runs in the checkout, and a relative path is of the caller's folder.
[[ $PYTHON != */* || $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON
FORECAST=${FORECAST:-yes}     # no: do not compile the step for the TPU, which takes minutes
wrong=0

# point ok|skipped|warning|FAILED NAME TEXT
point() {
  printf '%-8s %-10s %s\n' "$@"
  [[ $1 != FAILED ]] || wrong=$((wrong + 1))
}

# Prints the line of the last error that says what is wrong. That of gcloud may be the first of many.
last_error() {
  local line
  line=$(sed -n '/^ERROR: /{s///p;q;}' "$scratch/error")
  line=${line:-$(sed '/^ *$/d' "$scratch/error" | tail -n 1)}
  line=${line#tpu_pod: }
  echo "${line#error: }"
}

# ask NAME REMEDY COMMAND...: prints the last line of what a command prints, or why it fails and the remedy.
ask() {
  local answer
  if answer=$("${@:3}" 2>"$scratch/error"); then
    point ok "$1" "$(tail -n 1 <<<"$answer")"
  else
    point FAILED "$1" "$(last_error); $2"
    return 1
  fi
}

cloud() { limited "$QUICK" gcloud "$@" --quiet; }

check_machine() {
  local tool missing='' free
  for tool in git tar gzip timeout "$PYTHON"; do
    command -v "$tool" >/dev/null || missing+=" $tool"
  done
  if [[ -z $missing ]]; then point ok tools "gcloud git tar gzip timeout $PYTHON"; else
    point FAILED tools "not installed:$missing; install them, or set PYTHON to an environment with bertjax"
  fi
  free=$(($(df -Pk "$scratch" | awk 'NR == 2 {print $4}') / 1024))
  if ((free >= 1024)); then point ok disk "$((free / 1024)) GiB free in ${scratch%/*}"; else
    point FAILED disk "$free MiB free in ${scratch%/*}; free 1024, or set TMPDIR to another folder"
  fi
}

in_checkout() { (cd "$here/.." && limited "$SLOW" "$PYTHON" -m "$@"); }

# lacks_packages NAME: whether Python found no package that bertjax needs; then the point fails.
lacks_packages() {
  grep -q '^ModuleNotFoundError: ' "$scratch/error" || return 1
  point FAILED "$1" "$(last_error); set PYTHON, now $PYTHON, to an environment with: pip install '.[tpu]'"
}

check_config() {
  local code=0 argument flags=()
  # What `run` would refuse, in a subshell, which it ends.
  if (refuse_changes) 2>"$scratch/error"; then point ok commit "${COMMIT:0:12} ($REF)"; else
    point FAILED commit "$(last_error)"
  fi
  # --settings ends the command after all checks of its flags, and before it starts anything.
  if in_checkout bertjax.train --distributed --config="$CONFIG" ${ARGS[@]+"${ARGS[@]}"} --settings=seed \
    >/dev/null 2>"$scratch/error"; then
    point ok config "$CONFIG, with ${#ARGS[@]} arguments"
  elif lacks_packages config; then
    return 0
  else
    point FAILED config "$(last_error); correct CONFIG or ARGS"
    return 0
  fi
  if [[ $FORECAST != yes ]]; then
    point skipped forecast "FORECAST=$FORECAST; whether the step fits $ACCELERATOR_TYPE is not known"
    return 0
  fi
  for argument in ${ARGS[@]+"${ARGS[@]}"}; do
    [[ $argument != --config.* ]] || flags+=("$argument")
  done
  in_checkout bertjax compile --config="$CONFIG" ${flags[@]+"${flags[@]}"} --topology="$ACCELERATOR_TYPE" \
    >/dev/null 2>"$scratch/error" || code=$?
  if [[ $code != 0 ]] && lacks_packages forecast; then return 0; fi
  case $code in
    0) point ok forecast "$(last_error)" ;;
    1) point FAILED forecast "$(last_error); lower runtime.micro_tokens, or choose a larger ACCELERATOR_TYPE" ;;
    2)
      if grep -q 'depends on the data' "$scratch/error"; then point skipped forecast "$(last_error)"; else
        point FAILED forecast "$(last_error)"
      fi
      ;;
    *) point FAILED forecast "exit code $code: $(last_error)" ;;
  esac
}

check_project() {
  local now enabled
  ask project "see: gcloud projects list" cloud projects describe "$PROJECT" --format='value(projectId)' || true
  if ! enabled=$(cloud services list --enabled --project="$PROJECT" --filter=config.name=tpu.googleapis.com \
    --format='value(config.name)' 2>"$scratch/error"); then
    point FAILED API "$(last_error); check PROJECT and your role in the project (Service Usage Viewer)"
  elif [[ -n $enabled ]]; then
    point ok API tpu.googleapis.com
  else
    point FAILED API \
      "tpu.googleapis.com is not enabled; run: gcloud services enable tpu.googleapis.com --project=$PROJECT"
  fi
  ask type "see: gcloud compute tpus accelerator-types list --zone=$ZONE --project=$PROJECT" \
    tpu "$QUICK" accelerator-types describe "$ACCELERATOR_TYPE" --format='value(type)' || true
  ask runtime "see: gcloud compute tpus versions list --zone=$ZONE --project=$PROJECT" \
    tpu "$QUICK" versions describe "$RUNTIME_VERSION" --format='value(version)' || true
  now=$(state 2>/dev/null)
  case $now in
    NONE) point ok name "$NAME is free" ;;
    UNKNOWN) point FAILED name "$(last_error); check PROJECT, ZONE and your role in the project (TPU Admin)" ;;
    *) point warning name "$NAME is $now: it exists already, and may cost money" ;;
  esac
  point skipped quota "only a request shows it; see https://console.cloud.google.com/iam-admin/quotas?project=$PROJECT"
}

check_bucket() {
  local bucket=${WORKDIR#gs://} region=${ZONE%-*} place
  bucket=gs://${bucket%%/*}
  if ! cloud storage ls "$bucket" >/dev/null 2>"$scratch/error"; then
    point FAILED bucket \
      "$(last_error); correct WORKDIR, or make it: gcloud storage buckets create $bucket --location=$region"
    return 0
  fi
  place=$(cloud storage buckets describe "$bucket" --format='value(location)' 2>/dev/null |
    tr '[:upper:]' '[:lower:]') || true
  case ${place:-unknown} in
    "$region") point ok bucket "$bucket, in $region" ;;
    unknown) point warning bucket "$bucket can be listed, and its region cannot be read; outside $region data costs" ;;
    *) point warning bucket "$bucket is in $place and the TPU in $region; what crosses regions costs" ;;
  esac
}

# Prints the point that checks a setting of a place; nothing for other settings.
point_of() {
  case $1 in
    data.corpus | data.heldout | data.sources.*.corpus) echo corpus ;;
    data.store) echo store ;;
    data.tokenizer.model | data.tokenizer.keep_file) echo tokenizer ;;
    data.filters.*.against*) echo filter ;;
    init_from) echo init_from ;;
    tasks.*.objective*.teacher) echo teacher ;;
    tasks.*.objective*.lexicon | stages.*.masking.lexicon) echo lexicon ;;
    tasks.*.examples.train | tasks.*.examples.unlabeled) echo examples ;;
    tasks.*.examples.heldout | tasks.*.examples.further_heldout*) echo examples ;;
  esac
}

check_places() {
  local argument name place places several='^[[({]'
  for argument in ${ARGS[@]+"${ARGS[@]}"}; do
    [[ $argument =~ ^--config\.([^=]+)=(.+)$ ]] || continue
    place=${BASH_REMATCH[2]//[\'\"]/}
    name=$(point_of "${BASH_REMATCH[1]}")
    [[ -n $name ]] || continue
    [[ $name != init_from ]] || place=${place%@*}  # RUN@STEP
    # A share of the training file instead of a file.
    [[ $name != examples || ! $place =~ ^[0-9]*\.?[0-9]+([eE]-?[0-9]+)?$ ]] || continue
    [[ $name:$place != lexicon:mine ]] || continue  # made from the corpus
    places=("$place")
    # Several files, as in ("a.txt", "b.txt") or {"name": "c.txt"}.
    [[ ! $place =~ $several ]] || IFS=, read -ra places <<<"$(tr -d '()[]{}' <<<"$place")"
    for place in "${places[@]}"; do
      place=${place#*: }
      check_place "$name" "${place# }" "$argument"
    done
  done
}

# Checks one place that workers read: the name of its point, the place, and the argument that names it.
check_place() {
  case $1:$2 in
    store:gs://*)  # the first start makes it, so it need not exist
      local bucket=${2#gs://}
      ask store "correct $3 in ARGS" cloud storage ls "gs://${bucket%%/*}" || true
      ;;
    *:gs://*) ask "$1" "correct $3 in ARGS" cloud storage ls "$2" || true ;;
    *:embedded:* | *:hf:* | *:tfds:* | *:s3://*) point skipped "$1" "$2 is read by the workers" ;;
    *) point FAILED "$1" "$2 is on this machine only; run: gcloud storage cp -r $2 gs://BUCKET/" ;;
  esac
}

check() {
  point ok settings "NAME=$NAME, $ACCELERATOR_TYPE in $ZONE"
  check_machine
  check_config
  if cloud auth print-access-token >/dev/null 2>"$scratch/error"; then
    point ok login gcloud
    check_project
    check_bucket
    check_places
  elif is_logged_out; then
    point FAILED login "gcloud is not logged in, or its login has expired; run: gcloud auth login, then check again"
  else
    point FAILED login "$(last_error); check the network, then check again"
  fi
  ((wrong == 0)) || { log "$wrong points failed; nothing was requested"; exit 2; }
  log "nothing was requested; tpu_pod.sh up requests the TPU"
}
