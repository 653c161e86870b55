# SPDX-License-Identifier: MIT
# Sourced by run.sh: three hosts, h1 to h3, which are networks of the kernel behind one bridge, with two ranks on each.
# They have no names and no way to anywhere else.

# Makes them, if another part has not.
three_hosts_start() {
  local number
  if [ ! -e "/run/netns/railyard-$$-h3" ]; then
    if ! { ip netns add "railyard-$$-h0" && on_host h0 ip link add bridge type bridge; } 2>"$log"; then
      echo "not run: three hosts, as this kernel lets nobody make networks with bridges ($(cat "$log"))"
      return 1
    fi
    on_host h0 ip link set bridge up
    for number in 1 2 3; do
      ip netns add "railyard-$$-h$number"
      ip link add net0 netns "railyard-$$-h$number" type veth peer name "port$number" netns "railyard-$$-h0"
      on_host h0 ip link set "port$number" master bridge up
      on_host "h$number" ip link set lo up
      on_host "h$number" ip address add "fd78::$number/64" dev net0 nodad
      on_host "h$number" ip link set net0 up
    done
  fi
  # A bridge passes nothing on from a port in the first moment.
  wait_until 60 on_host h1 python3 -c '
import errno, socket
one = socket.socket(socket.AF_INET6)
one.settimeout(1)
exit(one.connect_ex(("fd78::3", 9)) != errno.ECONNREFUSED)' || fail "reaching a host"
}

# start_three COMMAND...: as processes 0 to 2, one on each host; their output and status go to $folder/h1.log, ...
start_three() {
  local number status
  rm -f "$folder"/h[1-3].{log,status}
  for number in 1 2 3; do
    (
      status=0
      on_host "h$number" env RANK=$((number - 1)) WORLD_SIZE=3 MASTER_ADDR=fd78::1 MASTER_PORT=29500 "$@" \
        >"$folder/h$number.log" 2>&1 || status=$?
      echo $status >"$folder/h$number.status"
    ) &
  done
}

# end_three STATUS NAME: waits for all of them.
end_three() {
  local number
  for number in 1 2 3; do
    wait_until 120 test -s "$folder/h$number.status" || true
    cat "$folder/h$number.log" >>"$folder/three.log"
  done
  mv "$folder/three.log" "$log"
  for number in 1 2 3; do
    [ "$(cat "$folder/h$number.status" 2>/dev/null)" = "$1" ] || fail "$2: host $number did not end with $1"
  done
}

run_three() {
  local trained
  three_hosts_start || return 0
  export RAILYARD_SECRET=0123456789abcdef0123456789abcdef
  start_three "$show"
  end_three 0 "meeting over IPv6"
  expect 3 "met in the fixed address fd78::1:29500"
  start_three "$digits" "$data" 2 "$folder/runs" hosts6
  end_three 0 "training on three hosts"
  grep -q "^6 workers, weights $(weights_of 6 | cut -c1-6)" "$log" || fail "training on three hosts"
  trained=$(grep "^6 workers" "$log")
  echo "ok: three hosts with two workers each: $trained, one host $(weights_of 6)"
  three_hosts_lose_a_worker "$trained"
  unset RAILYARD_SECRET
  three_hosts_meet_by_launchers
}

# worker_of HOST NUMBER: prints the process that is worker NUMBER of those on a host.
worker_of() {
  local pid
  for pid in $(ip netns pids "railyard-$$-$1"); do
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "railyard:$2" ]; then echo "$pid"; fi
  done
}

# three_hosts_lose_a_worker EXPECTED: one that is killed amid training, on a host that does not lead, is started again
# with all others, and they train to the bits of a run that nothing has happened to.
three_hosts_lose_a_worker() {
  local run=$folder/runs/killed6
  start_three "$digits" "$data" 2 "$folder/runs" killed6
  wait_until 60 test -s "$run/metrics.jsonl" || true # after the first of twelve epochs
  kill -9 "$(worker_of h2 1)" || true
  end_three 0 "training on three hosts, where a worker is killed"
  grep -q '"event": "restart".*killed by signal 9' "$run/events.jsonl" || fail "killing a worker amid training"
  grep -q -x -F "$1" "$log" || fail "training to the bits of: $1"
  echo "ok: a worker that is killed on one of three hosts is started again, and they train to the same"
}

# What starts processes on other hosts calls this where it would call ssh. Each host has a folder of its own for what
# Open MPI's daemons leave in such.
write_agent() {
  mkdir -p "$folder"/tmp{1,2,3}
  cat >"$folder/agent" <<SCRIPT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
exec ip netns exec "railyard-$$-h\${1##*.}" env TMPDIR="$folder/tmp\${1##*.}" sh -c "\${*:2}"
SCRIPT
  chmod 755 "$folder/agent"
}

show_apart() { cat "$folder"/apart.* >"$log" && fail "$1"; }

# The launchers of MPI start processes on hosts that have no secret, no address and no folder in common but these.
three_hosts_meet_by_launchers() {
  local number hosts=10.78.0.1,10.78.0.2,10.78.0.3
  local hydra=(mpiexec.hydra -launcher ssh -launcher-exec "$folder/agent" -localhost 10.78.0.1 -hosts $hosts)
  local open_mpi=(mpirun.openmpi --allow-run-as-root --bind-to none --oversubscribe --mca plm_rsh_agent "$folder/agent"
    --mca oob_tcp_if_include 10.78.0.0/24 --host "${hosts//,/:2,}:2")
  write_agent
  for number in 1 2 3; do on_host "h$number" ip address add "10.78.0.$number/24" dev net0; done

  # What processes print through mpiexec may be mixed within lines: each has a file of its own.
  cat >"$folder/apart" <<SCRIPT
#!/usr/bin/env bash
exec "\$@" >"$folder/apart.\$PMI_RANK" 2>&1
SCRIPT
  chmod 755 "$folder/apart"
  on_host h1 "${hydra[@]}" -ppn 2 -n 6 "$folder/apart" "$show" || show_apart "mpiexec.hydra on three hosts"
  cat "$folder"/apart.* >"$log"
  expect 6 "of 2 here" "met in the key-value space of PMI (mpiexec)"
  on_host h1 "${hydra[@]}" -ppn 1 -n 3 "$digits" "$data" 2 "$folder/runs" hydra6 >"$log" 2>&1 || fail "mpiexec.hydra"
  grep -q "^6 workers, weights $(weights_of 6 | cut -c1-6)" "$log" || fail "training by mpiexec.hydra"
  rm "$folder"/apart.*
  on_host h1 "${hydra[@]}" -ppn 1 -n 3 "$folder/apart" "$show" mpi || show_apart "mpiexec.hydra of a program that uses MPI"
  cat "$folder"/apart.* >"$log"
  [ "$(grep -c "is left to MPI.*; MPI is whole$" "$log")" = 3 ] || fail "leaving PMI to MPI"
  echo "ok: PMI is left to a program's own MPI, which is whole afterwards"

  on_host h1 "${open_mpi[@]}" -n 6 --map-by ppr:2:node "$show" >"$log" 2>&1 || fail "mpirun on three hosts"
  expect 6 "of 2 here" "met in the key-value space of Open MPI"
  on_host h1 "${open_mpi[@]}" -n 3 --map-by ppr:1:node "$digits" "$data" 2 "$folder/runs" mpi6 >"$log" 2>&1 || fail "mpirun"
  grep -q "^6 workers, weights $(weights_of 6 | cut -c1-6)" "$log" || fail "training by mpirun"
  echo "ok: both launchers of MPI train on three hosts to $(grep "^6 workers" "$log")"
}
