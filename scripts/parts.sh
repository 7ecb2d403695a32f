# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by .ci/run, from the root of the repository: parts of a long run, each with a time limit, all under
# one clock.
#   parts_start FOLDER SECONDS [NAME...]  a part begins only if its limit ends before SECONDS from now, and
#                               only if it is one of those named, if any is. Logs go to FOLDER
#   part NAME LIMIT COMMAND...  runs COMMAND, a program or an exported function, and shows what it prints.
#                               After LIMIT seconds it is stopped, with all that it started, and has failed
#   beside NAME LIMIT COMMAND...  the same in the background, two at a time
#   together                    waits for those, and shows what they printed
#                               Each part's last line has its seconds, and those of the processor for all that it
#                               started, now and in the run of this folder before: by these, two machines and two
#                               commits are compared. FOLDER/seconds.json has them by part
#   began NAME                  whether it was begun
#   left_out NAME WHY           for a part that cannot run because another was not begun
#   parts_end                   the ends of the logs that failed, and what was not run. Then $passed, $failed
#                               and $not_run are the numbers of parts
# A part that does not begin fails nothing: how fast the machine is says nothing of the change.

passed=0 failed=0 not_run=0 parts_cpu=0 parts_json=
only=() seen=" " failed_parts=() not_begun=() running=()
declare -A begun=()

parts_start() {
  parts_folder=$1
  parts_seconds=$2
  parts_from=$SECONDS
  only=("${@:3}")
  mkdir -p "$parts_folder"
}

left_out() {
  not_begun+=("$1: not run: $2")
  not_run=$((not_run + 1))
  echo "=== $1: not run"
}

# may_begin NAME LIMIT
may_begin() {
  seen+="$1 "
  if ((${#only[@]})) && [[ " ${only[*]} " != *" $1 "* ]]; then
    return 1
  fi
  if ((SECONDS - parts_from + $2 > parts_seconds)); then
    left_out "$1" "$((SECONDS - parts_from)) s of $parts_seconds s had gone, and it may take $2 s"
    return 1
  fi
  begun[$1]=1
}
began() { [[ -n ${begun[$1]:-} ]]; }

# limited NAME LIMIT COMMAND...: in a shell that stops at the first command that fails, as ours does. The part of a
# condition would not. NAME.cpu gets the processor's seconds, of user and of system.
limited() {
  local name=$1 limit=$2 TIMEFORMAT="%0U %0S"
  shift 2
  [[ ! -e $parts_folder/$name.cpu ]] || mv "$parts_folder/$name.cpu" "$parts_folder/$name.cpu.before"
  { time scripts/limit "$limit" bash -c 'set -euo pipefail; "$@"' part "$@" </dev/null 2>&1; } \
    2>"$parts_folder/$name.cpu"
}

# cpu_seconds FILE
cpu_seconds() {
  local user=0 system=0
  read -r user system 2>/dev/null <"$1" || true
  echo $((user + system))
}

# ended NAME CODE SECONDS LIMIT
ended() {
  local cpu before=
  cpu=$(cpu_seconds "$parts_folder/$1.cpu")
  [[ ! -e $parts_folder/$1.cpu.before ]] || before=", $(cpu_seconds "$parts_folder/$1.cpu.before") in the run before"
  parts_cpu=$((parts_cpu + cpu))
  parts_json+="${parts_json:+, }\"$1\": $cpu"
  if (($2 == 0)); then
    passed=$((passed + 1))
    echo "=== $1: ok, $3 s, $cpu s of the processor$before"
    return
  fi
  failed=$((failed + 1))
  failed_parts+=("$1")
  if (($2 == 124)); then
    echo "=== $1: FAILED, stopped at its limit of $4 s"
  else
    echo "=== $1: FAILED, $3 s"
  fi
}

part() {
  local name=$1 limit=$2 start=$SECONDS code=0
  shift 2
  may_begin "$name" "$limit" || return 0
  echo "=== $name"
  limited "$name" "$limit" "$@" | tee "$parts_folder/$name.log" || code=${PIPESTATUS[0]}
  ended "$name" "$code" $((SECONDS - start)) "$limit"
}

beside() {
  local name=$1 limit=$2
  shift 2
  while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
  may_begin "$name" "$limit" || return 0
  running+=("$name")
  rm -f "$parts_folder/$name.end"
  {
    code=0 start=$SECONDS
    limited "$name" "$limit" "$@" >"$parts_folder/$name.log" || code=$?
    echo "$code $((SECONDS - start)) $limit" >"$parts_folder/$name.end"
  } &
}

together() {
  local name code seconds limit
  wait
  for name in "${running[@]}"; do
    echo "=== $name"
    cat "$parts_folder/$name.log"
    code=1 seconds=0 limit=0
    read -r code seconds limit <"$parts_folder/$name.end" || true
    ended "$name" "$code" "$seconds" "$limit"
  done
  running=()
}

parts_end() {
  local name line
  for name in "${only[@]}"; do
    [[ $seen == *" $name "* ]] || left_out "$name" "there is no such part, but:$seen"
  done
  for name in "${failed_parts[@]}"; do
    echo "=== $name FAILED; the end of $parts_folder/$name.log:"
    tail -n 40 "$parts_folder/$name.log"
  done
  for line in "${not_begun[@]}"; do echo "=== $line"; done
  echo "{$parts_json}" >"$parts_folder/seconds.json"
  echo "=== $((passed + failed)) parts in $((SECONDS - parts_from)) s, $parts_cpu s of the processor, $not_run not run"
}
