# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Functions for slurm.sh and pbs.sh with SPARE_NODES: test every node of the job, start on good
# ones, and start again without a node that goes bad. The scripts set hosts and slots (the ranks of
# each host), agent (the launcher's options for starting helpers), trainer, words, binding and passed_on,
# and define time_left. Results are in rc, bad (nodes that went bad) and lost (set: the job should
# be continued on other nodes).
# shellcheck disable=SC2154,SC2034  # slurm.sh, pbs.sh and common.sh set and use these variables

hosts=() slots=() bad=() good=() agent=()
spare_nodes=${SPARE_NODES:-0}
max_restarts=${MAX_RESTARTS:-3}
restart_s=${RESTART_S:-600}
selftest_s=${SELFTEST_S:-300}
slow_below=${SLOW_BELOW:-0.6}
check_number SPARE_NODES "$spare_nodes" 0
check_number MAX_RESTARTS "$max_restarts" 0
check_number RESTART_S "$restart_s" 0
check_number SELFTEST_S "$selftest_s" 1

# on INDEX...: sets on_hosts to the launcher's options for all ranks of these hosts, and on_list to the hosts.
on() {
  local i ranks=0
  on_list=''
  for i in "$@"; do
    on_list+=${on_list:+,}${hosts[i]}:${slots[i]}
    ranks=$((ranks + slots[i]))
  done
  hosts_option "$on_list" "$ranks"
  on_hosts+=("${agent[@]}")
}

# Sets test_words to the words of the selftest: the deck and its options, without those of a run.
choose_test_words() {
  local skip='' word
  test_words=()
  for word in "${words[@]}"; do
    if [ -n "$skip" ]; then skip=''; continue; fi
    case $word in
      --mode | --fast-dev) skip=1 ;;
      --mode=* | --fast-dev=* | --cleanup) ;;
      *) test_words+=("$word") ;;
    esac
  done
  # Steps on all meshes say nothing about one node.
  test_words+=(--mode selftest --json --set 'selftest.checks=["exchange", "speed", "files", "clocks"]'
    --set "selftest.slow_below=$slow_below")
}

# field NAME FILE: prints a text or number of a selftest's report.
field() { sed -n 's/^{"mode":"selftest",.*"'"$1"'":\("\(\([^"\\]\|\\.\)*\)"\|\([^",]*\)\)[,}].*/\2\4/p' "$2" | sed 's/\\\(.\)/\1/g' | head -n 1; }

# is_bad INDEX CAUSE: leaves a node out.
is_bad() {
  local i kept=()
  echo "node ${hosts[$1]} is bad: $2"
  bad+=("${hosts[$1]}")
  for i in "${good[@]}"; do [ "$i" = "$1" ] || kept+=("$i"); done
  good=("${kept[@]}")
}

# start_test FOLDER INDEX, end_test INDEX: the selftest on a node, for test_nodes.
start_test() {
  on "$2"
  local passed_on=("${passed_on[@]}")
  pass_variable TMPDIR
  TMPDIR=${TMPDIR:-${LOCAL_DIR:-/tmp}} timeout -k 10 "$selftest_s" "${launcher[@]}" "${on_hosts[@]}" "${binding[@]}" "${passed_on[@]}" \
    "$trainer" "${test_words[@]}" > "$1/$2" 2>&1 < /dev/null &
  pids[$2]=$!
}

end_test() {
  while :; do  # a signal ends `wait` early
    wait "${pids[$1]}"; codes[$1]=$?
    if [ "${codes[$1]}" -le 128 ] || ! kill -0 "${pids[$1]}" 2>/dev/null; then break; fi
  done
}

# test_nodes FOLDER: tests all nodes at the same time, sets good to the indices of those that pass,
# and run_dir to the run directory. Files of this folder hold the tests' output.
test_nodes() {
  local folder=$1 i code pids=() codes=()
  choose_test_words
  for i in "${!hosts[@]}"; do
    # A node that an earlier part of the job has found to be bad is not tried again.
    if [[ ,${BAD_HOSTS:-}, == *,${hosts[i]},* ]]; then
      echo "node ${hosts[i]} is bad: an earlier part of this job has found that"
      continue
    fi
    good+=("$i")
    start_test "$folder" "$i"
  done
  for i in "${good[@]}"; do end_test "$i"; done
  # mpirun itself may hang or fail when several start at once, for example to make its folder in TMPDIR.
  # So this runs a test without a report once more, alone. A wrong deck (2) would fail again.
  for i in "${good[@]}"; do
    case ${codes[i]} in 0 | 2) continue ;; esac
    grep -q '^{"mode":"selftest"' "$folder/$i" || { start_test "$folder" "$i"; end_test "$i"; }
  done
  # A deck that is wrong is so on every node.
  if [ "$(printf '%s\n' "${codes[@]}" | sort -u)" = 2 ]; then
    for i in "${good[@]}"; do cat "$folder/$i" >&2; break; done
    rc=2 good=()
    return
  fi
  for i in "${good[@]}"; do
    code=${codes[i]}
    [ -n "$run_dir" ] || run_dir=$(field dir "$folder/$i")
    case $code in
      0) continue ;;
      124 | 137) is_bad "$i" "its test did not end within $selftest_s s" ;;
      *)
        is_bad "$i" "$(field verdict "$folder/$i" | grep . ||
          echo "its test ended with $code: $(grep -v '^-*$' "$folder/$i" | head -n 3 | tr '\n' ' ')")"
        rc=$code
        ;;
    esac
  done
  # Ranks of one node are alike, so its test cannot see that all of them are slow.
  local speeds=''
  for i in "${good[@]}"; do speeds+="$i $(field gflops "$folder/$i") $(field gbytes "$folder/$i")"$'\n'; done
  while read -r i code; do
    [ -z "$i" ] || is_bad "$i" "$code"
  done < <(sort -g -k 2 <<< "$speeds" | awk -v least="$slow_below" 'NF == 3 {node[++n] = $1; flops[n] = $2; bytes[n] = sorted[n] = $3}
    END {
      for (i = 2; i <= n; ++i) for (j = i; j > 1 && sorted[j] < sorted[j - 1]; --j) {t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t}
      a = int((n + 1) / 2); b = int(n / 2) + 1
      f = (flops[a] + flops[b]) / 2; g = (sorted[a] + sorted[b]) / 2
      for (i = 1; i <= n; ++i)
        if (flops[i] < least * f) printf "%s slow: %.1f GFLOP/s of a rank, and the median of the nodes is %.1f\n", node[i], flops[i], f
        else if (bytes[i] < least * g) printf "%s slow: %.1f GB/s of a rank, and the median of the nodes is %.1f\n", node[i], bytes[i], g
    }')
}

# state_of FILE: prints what changes when the file is written anew.
state_of() { stat -c '%i %y' "$1" 2>/dev/null; cat "$1" 2>/dev/null; }

# cause_of FILE: prints the cause in a report of a failure, without its numbers.
cause_of() { sed -n '1s/.* exit=[0-9]*: //p' "$1" 2>/dev/null | sed 's/[0-9][0-9.]*/#/g'; }

# blamed FILE: prints the index of the good node that the report names; fails if it names none.
blamed() {
  local i host
  host=$(sed -n '1s/^rank=[0-9]* of [0-9]* host=\([^ ]*\) .*/\1/p' "$1" 2>/dev/null)
  [ -n "$host" ] || return 1
  for i in "${good[@]}"; do
    if [ "${hosts[i]}" = "$host" ] || [ "${hosts[i]%%.*}" = "${host%%.*}" ]; then echo "$i"; return; fi
  done
  return 1
}

# run_on_good_nodes JOB: tests the nodes, and runs the trainer on as many good ones as the job has
# without its spare nodes. After an exit 3, 5 or 7 whose report names a node, it starts again
# without this node.
run_on_good_nodes() {
  local job=$1 folder need=$((${#hosts[@]} - spare_nodes)) report before cause last restarts=0 node
  run_dir=''
  [ "$need" -ge 1 ] || wrong "SPARE_NODES=$spare_nodes of ${#hosts[@]} nodes leaves none to run on"
  folder=$(mktemp -d)
  rc=3
  test_nodes "$folder"
  rm -rf -- "$folder"
  if [ ${#good[@]} -lt "$need" ]; then
    if [ "$rc" = 2 ]; then return; fi
    if [ ${#good[@]} = 0 ]; then
      echo "not started: every node is bad, so the cause is more likely something that all nodes share" >&2
    else
      echo "not started: only ${#good[@]} good nodes, but the job needs $need" >&2
      lost=1
    fi
    return
  fi
  on "${good[@]}"
  make_tmpdir "$job" "${#hosts[@]}" "${on_hosts[@]:0:2}" "${agent[@]}"
  report=$run_dir/report.txt
  last=$(cause_of "$report")  # that of an earlier part
  while :; do
    on "${good[@]:0:need}"
    echo "starts on $on_list"
    before=$(state_of "$report")
    run_trainer "${on_hosts[@]}" "${binding[@]}" "${passed_on[@]}" "$trainer" "${words[@]}"
    case $rc in 3 | 5 | 7) ;; *) break ;; esac
    [ "$(state_of "$report")" != "$before" ] || break
    node=$(blamed "$report") || break
    cause=$(cause_of "$report")
    if [ "$cause" = "$last" ]; then
      echo "not started again: the same failure as before, so a node is not the cause" >&2
      break
    fi
    last=$cause
    is_bad "$node" "$(head -n 1 "$report")"
    if [ -n "$asked" ]; then lost=1; break; fi
    if [ ${#good[@]} -lt "$need" ]; then
      echo "not started again: no spare node is left"
      lost=1
      break
    fi
    if [ "$restarts" -ge "$max_restarts" ]; then
      echo "not started again: $restarts restarts (MAX_RESTARTS)" >&2
      break
    fi
    if [ "$(time_left)" -lt "$restart_s" ]; then
      echo "not started again: less than $restart_s s are left (RESTART_S)"
      lost=1
      break
    fi
    restarts=$((restarts + 1))
  done
  on "${good[@]}"
  remove_tmpdir "${#hosts[@]}" "${on_hosts[@]:0:2}" "${agent[@]}"
}
