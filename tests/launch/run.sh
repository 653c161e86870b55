#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Starts the real launchers and has them start processes, which meet, and train digits to the same bits as one process
# alone: tests/launch/run.sh [PART...], see below for the parts. Each ends what it has started. torchrun comes from a
# wheel: it is left out, in words, where no Python here has one and there is none in build/pytorch; hosts are networks of
# the kernel, and are left out where it lets nobody make them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ "$(id -u)" != 0 ]; then
  echo "tests/launch/run.sh starts the daemons of Slurm, which takes root"
  exit 77
fi
root=$PWD
source tools/packages.sh
source tests/launch/slurm_cluster.sh
source tests/launch/slow_hosts.sh
source tests/launch/three_hosts.sh
parts=("$@")
[ $# != 0 ] || parts=(mpi slurm torchrun kubernetes hosts regroup three)

packages=(g++ cmake ninja-build libfmt-dev libssl-dev libgloo-dev libtorch-dev libopenblas0-pthread zlib1g-dev libzstd-dev
  python3 pkg-config git catch2)
case " ${parts[*]} " in *" mpi "*) packages+=(openmpi-bin mpich) ;; esac
case " ${parts[*]} " in *" slurm "*) packages+=(iproute2 slurmctld slurmd slurm-client munge openmpi-bin) ;; esac
case " ${parts[*]} " in *" hosts "* | *" regroup "* | *" torchrun "* | *" kubernetes "*) packages+=(iproute2) ;; esac
case " ${parts[*]} " in *" kubernetes "*) packages+=(python3-yaml) ;; esac
case " ${parts[*]} " in *" three "*) packages+=(openmpi-bin mpich iproute2) ;; esac
railyard_need "${packages[@]}"

folder=$(mktemp -d "${TMPDIR:-/tmp}/railyard-launch-XXXXXX")
chmod 755 "$folder"
clean_up() {
  local status=$?
  slurm_cluster_stop "$folder/slurm" || true
  jobs -p | xargs -r kill 2>/dev/null || true
  for host in one two h0 h1 h2 h3; do ip netns delete "railyard-$$-$host" 2>/dev/null || true; done
  rm -rf --one-file-system "$folder"
  exit $status
}
trap clean_up EXIT
trap 'exit 130' INT TERM

railyard_compile -std=c++20 -O1 -Iinclude tests/launch/show_launch.cpp -o "$folder/show_launch" -lfmt -lssl -lcrypto -pthread
case " ${parts[*]} " in *" slurm "* | *" torchrun "* | *" regroup "*)
  railyard_compile -std=c++20 -O1 -Iinclude -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_LAUNCHED=1 tests/launch/counts.cpp \
    -o "$folder/counts" -lgloo -lfmt -lssl -lcrypto -lz -lzstd -pthread
  ;;
esac
show=$folder/show_launch
counts=$folder/counts
digits=${DIGITS_LAUNCHED:-$root/build/tests/examples/digits_launched}  # examples/launch/digits.cpp, built
if [ -z "${DIGITS_LAUNCHED:-}" ]; then
  cmake -S . -B build/tests -G Ninja -DRAILYARD_UNITY=ON >/dev/null
  cmake --build build/tests --target digits_launched >/dev/null
fi
data=$root/examples/data/digits.csv
export OMP_NUM_THREADS=1
log=$folder/log

fail() {
  echo "FAILED: $1"
  cat "$log"
  exit 1
}

# expect NUM_PROCESSES TEXT...: each process has written one line, and each of these lines holds each of the texts.
expect() {
  local num=$1 process text
  shift
  for ((process = 0; process < num; ++process)); do
    [ "$(grep -c "^process $process of $num," "$log")" = 1 ] || fail "no line, or more than one, of process $process of $num"
  done
  for text in "$@"; do
    [ "$(grep "^process [0-9]* of $num," "$log" | grep -c -F -- "$text")" = "$num" ] || fail "not $num times \"$text\""
  done
  echo "ok: $num processes: $*"
}

# Prints what digits weigh when one process with a number of workers has trained them.
weights_of() {
  local file=$folder/weights$1
  if [ ! -f "$file" ]; then
    "$digits" "$data" "$1" "$folder/runs" "alone$1" 2>/dev/null | sed -n 's/.*, weights //p' >"$file"
  fi
  cat "$file"
}

# check_training NUM_WORKERS NAME: the log says that so many workers have trained to the bits that one process trains to.
check_training() {
  local expected
  expected="$1 workers, weights $(weights_of "$1")"
  [ "$(grep -c -x -F "$expected" "$log")" = 1 ] || fail "$2 did not train to: $expected"
  sed -n "s/^$1 workers, weights /${2%%[0-9]*} $1 /p" "$log" >>"$folder/trained"
  echo "ok: $2: $expected"
}

# compare_launchers LAUNCHER...: each of them has trained on 1, 2 and 4 ranks, and the same number of ranks to the same
# weights under every one.
compare_launchers() {
  local launcher ranks
  cp "$folder/trained" "$log"
  for launcher in "$@"; do
    for ranks in 1 2 4; do
      [ "$(grep -c "^$launcher $ranks " "$log")" -ge 1 ] || fail "$launcher has not trained on $ranks ranks"
    done
  done
  [ "$(sed -n 's/^[a-z]* \([124] .*\)/\1/p' "$log" | sort -u | wc -l)" = 3 ] || fail "launchers do not train to the same"
  echo "ok: $*: the same weights on 1, 2 and 4 ranks: $(cut -d ' ' -f 2- "$log" | grep '^[124] ' | sort -u | paste -s -d ';')"
}

# train NUM_WORKERS WORKERS_PER_PROCESS NAME COMMAND...
train() {
  "${@:4}" "$digits" "$data" "$2" "$folder/runs" "$3" >"$log" 2>&1 || fail "training as $3"
  check_training "$1" "$3"
}

run_mpi() {
  MPIRUN=mpirun.openmpi bash examples/launch/mpirun.sh "$show" >"$log" 2>&1 || fail "mpirun"
  expect 3 "of 3 here" "/railyard-mpi-" "Open MPI: OMPI_COMM_WORLD_RANK="
  MPIRUN=mpiexec.hydra bash examples/launch/mpirun.sh "$show" >"$log" 2>&1 || fail "mpiexec.hydra"
  expect 3 "of 3 here" "/railyard-hydra-" "PMI (mpiexec): PMI_RANK="
  # Two jobs at a time do not meet.
  for job in one two; do
    MPIRUN=mpiexec.hydra PROCESSES=2 bash examples/launch/mpirun.sh "$show" >"$folder/$job.log" 2>&1 &
  done
  wait
  for job in one two; do
    mv "$folder/$job.log" "$log"
    expect 2 "/railyard-hydra-"
  done
  export PROCESSES
  PROCESSES=1 MPIRUN=mpirun.openmpi train 1 1 mpi1 bash examples/launch/mpirun.sh
  PROCESSES=2 MPIRUN=mpirun.openmpi train 2 1 mpi2 bash examples/launch/mpirun.sh
  PROCESSES=2 MPIRUN=mpirun.openmpi train 4 2 mpi4 bash examples/launch/mpirun.sh
  PROCESSES=1 MPIRUN=mpiexec.hydra train 1 1 hydra1 bash examples/launch/mpirun.sh
  PROCESSES=2 MPIRUN=mpiexec.hydra train 2 1 hydra2 bash examples/launch/mpirun.sh
  PROCESSES=4 MPIRUN=mpiexec.hydra train 4 1 hydra4 bash examples/launch/mpirun.sh
  launchers+=(mpi hydra)
}

slurm_script() { printf '#!/usr/bin/env bash\n#SBATCH --output=%s\n%s\n' "$log" "$1" >"$folder/script"; }

run_slurm() {
  mkdir "$folder/slurm"
  slurm_cluster_start "$folder/slurm"

  # The names of these nodes are known to nobody, and all of them are this host.
  export MASTER_ADDR=127.0.0.1
  srun -N3 --ntasks-per-node=2 "$show" >"$log" 2>&1 || fail "srun"
  expect 6 "of 2 here" "/railyard-slurm-" "Slurm (srun): SLURM_PROCID="
  srun -N2 -n3 -m arbitrary -w n1,n1,n2 "$show" >"$log" 2>&1 || fail "srun with unequal nodes"
  expect 3
  grep -q "^process 2 of 3, 0 of 1 here" "$log" || fail "process 2 is the only one of its node"
  srun --mpi=pmi2 -N3 "$show" >"$log" 2>&1 || fail "srun --mpi=pmi2"
  expect 3 "of 1 here" "Slurm (srun)"
  RAILYARD_RENDEZVOUS=$folder srun -N3 "$show" >"$log" 2>&1 || fail "srun with a folder"
  expect 3 "met in $folder/railyard-slurm-"

  # The leader is found at the first node of the step where nobody names it.
  env -u MASTER_ADDR srun -N2 -w n2,n3 "$show" environment >"$log" 2>&1 || fail "srun without MASTER_ADDR"
  expect 2 "leader n2:2"
  run_slurm_spaces

  slurm_script "exec '$show'"
  sbatch --wait -N2 -n4 "$folder/script" >/dev/null || fail "sbatch"
  expect 1 "start the program by srun"
  touch "$folder/go"
  slurm_script "exec '$counts' '$folder/go' '$folder/runs' batch"
  sbatch --wait -N2 -n4 "$folder/script" >/dev/null || fail "a run in the batch script"
  grep -q "start the program by srun" "$log" || fail "fit() says nothing of srun"
  salloc -N3 --ntasks-per-node=1 mpirun.openmpi --allow-run-as-root "$show" >"$log" 2>&1 || fail "mpirun in salloc"
  expect 3 "Open MPI: OMPI_COMM_WORLD_RANK="

  rm "$log"
  (cd "$folder" && sbatch --wait --output="$log" "$root/examples/launch/slurm.sbatch" "$show") >/dev/null ||
    fail "examples/launch/slurm.sbatch"
  expect 3 "of 1 here" "restart 0"
  run_refused
  run_requeue
  run_no_kill

  rm "$log"
  sbatch --wait --output="$log" examples/launch/slurm.sbatch "$digits" "$data" 1 "$folder/runs" slurm3 >/dev/null || fail sbatch
  check_training 3 slurm3
  train 1 1 slurm1 srun -N1 --ntasks-per-node=1
  train 2 1 slurm2 srun -N2 --ntasks-per-node=1
  train 4 2 slurm4 srun -N2 --ntasks-per-node=1
  launchers+=(slurm)

  local list
  for list in 'n1' 'n[1-3]' 'a[01-03,7],b' 'n[8-11]' 'n[098-101]' 'c[1-2]-ib[5-6]' 'rack-3-node[12],x[1,3]' 'a,b,c[3-3]'; do
    diff <(scontrol show hostnames "$list") <("$show" nodes "$list") >"$log" || fail "the nodes of $list"
  done
  echo "ok: lists of nodes read as scontrol does"
  unset MASTER_ADDR
}

# Where Slurm, or an mpirun in its allocation, passes values between processes, they need no address and no secret.
run_slurm_spaces() {
  local kind
  if [ -z "$(outward_address)" ]; then
    echo "not run: meeting in a launcher's space, as this host has no address but that of the loopback"
    return
  fi
  unset MASTER_ADDR
  for kind in pmi2 pmix; do
    srun --mpi=$kind -N3 --ntasks-per-node=2 "$show" >"$log" 2>&1 || fail "srun --mpi=$kind without MASTER_ADDR"
    expect 6 "of 2 here" "met in the key-value space of Slurm (srun)"
    train 3 1 "${kind}3" srun --mpi=$kind -N3
  done
  salloc -N3 --ntasks-per-node=1 mpirun.openmpi --allow-run-as-root "$show" >"$log" 2>&1 || fail "mpirun without MASTER_ADDR"
  expect 3 "met in the key-value space of Open MPI"
  export MASTER_ADDR=127.0.0.1
}

# says TEXT FILE...: waits until a line of the files holds the text.
says() { wait_until 60 grep -q -F -- "$1" "${@:2}" || { cat "${@:2}" >"$log.all" && mv "$log.all" "$log" && fail "no \"$1\""; }; }

# kill_in FILE LABEL: kills the process that has said its number in a file last, behind a label. A launcher may bring what
# one process says after what another has said later.
kill_in() {
  wait_until 60 grep -q "^$2process [0-9]" "$1" || { cat "$1" && fail "no \"$2process\""; }
  kill -9 "$(sed -n "s/^$2process //p" "$1" | tail -n 1)"
}

# What would be refused again is not put into the queue again.
run_refused() {
  local name="refused\$SLURM_PROCID" # another setting in each process
  rm -f "$log"
  if timeout 120 sbatch --wait --output="$log" examples/launch/slurm.sbatch \
    sh -c "exec '$counts' '$folder/go' '$folder/runs' $name" >/dev/null; then
    fail "processes with other settings run"
  fi
  [ "$(grep -c "was started with other settings" "$log")" = 3 ] || fail "not all processes say what differs"
  [ "$(grep -c "SLURM_RESTART_COUNT=\|requeue" "$log")" = 0 ] || fail "Slurm starts them again"
  scontrol show job "$(squeue -h -t all -o %i | sort -n | tail -n 1)" >"$folder/job"
  grep -q "Restarts=0" "$folder/job" && grep -q "ExitCode=1:0" "$folder/job" || { cp "$folder/job" "$log" && fail "the job"; }
  echo "ok: a wrong configuration ends the job"
}

# A run that is told to stop saves, leaves with status 75, and goes on where it was when the job runs again.
run_requeue() {
  local job
  rm -f "$log" "$folder/go"
  job=$(sbatch --parsable --output="$log" examples/launch/slurm.sbatch "$counts" "$folder/go" "$folder/runs" requeued)
  says "[rank 2] stands still at step 5" "$log"
  scancel --signal=USR1 "$job" # to the processes, as --signal does when the time is nearly over
  wait_until 60 eval "scontrol show job $job | grep -q 'Restarts=1'" || fail "the job was not put into the queue again"
  touch "$folder/go"
  # A job that has run before waits for two minutes otherwise, and may do so nevertheless.
  wait_until 30 scontrol update JobId="$job" StartTime=now || fail "scontrol update"
  wait_until 180 eval "scontrol show job $job | grep -q 'JobState=COMPLETED'" || fail "the job did not run again"
  says "SLURM_RESTART_COUNT=1" "$log"
  says "[rank 0] begins at step 5" "$log"
  says "sum 1140" "$log"
  echo "ok: a run that was told to stop goes on when Slurm runs it again"
}

# Where Slurm leaves the others alone, they go on without a process that is killed.
run_no_kill() {
  local step
  rm -f "$folder/go"
  timeout 180 srun -l -N3 --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    "$counts" "$folder/go" "$folder/runs" no_kill 2 3 >"$log" 2>&1 &
  step=$!
  says "[rank 2] stands still at step 5" "$log"
  kill_in "$log" "1: "
  wait_until 60 eval "[ \$(grep -c 'stands still at step 5' '$log') = 5 ]" || fail "the two that are left do not go on"
  touch "$folder/go"
  wait "$step" || true # one process has ended badly
  says "sum 600" "$log"
  echo "ok: Slurm's other processes go on without one that is killed"
}

# A process that is killed makes torchrun start all of them again; the run goes on at its newest checkpoint.
run_killed() {
  local node logs=("$folder/node1.log" "$folder/node2.log")
  rm -f "$folder/go"
  for node in 1 2; do
    PROCESSES_PER_NODE=1 timeout 180 bash examples/launch/torchrun.sh "$counts" "$folder/go" "$folder/runs" killed \
      >"$folder/node$node.log" 2>&1 &
  done
  says "[rank 1] stands still at step 5" "${logs[@]}"
  kill_in "$folder/node$1.log" ""
  says "TORCHELASTIC_RESTART_COUNT=1" "${logs[@]}"
  touch "$folder/go"
  wait
  says "[rank 0] begins at step 5" "${logs[@]}"
  says "sum 570" "${logs[@]}"
  rm -rf "$folder/runs/killed"
}

# Where a process ends before it meets the others, its agent counts a restart, and the other agent does not.
run_uneven() {
  local node
  cat >"$folder/fails_early" <<SCRIPT
#!/usr/bin/env bash
echo "is told of attempt \$TORCHELASTIC_RESTART_COUNT"
if [ \$NODE = 2 ] && [ \$TORCHELASTIC_RESTART_COUNT = 0 ]; then exit 1; fi
exec '$counts' '$folder/go' '$folder/runs' uneven
SCRIPT
  chmod 755 "$folder/fails_early"
  touch "$folder/go"
  for node in 1 2; do
    NODE=$node PROCESSES_PER_NODE=1 timeout 180 bash examples/launch/torchrun.sh "$folder/fails_early" \
      >"$folder/node$node.log" 2>&1 &
  done
  wait
  cat "$folder"/node[12].log >"$log"
  [ "$(grep -c -x "sum 570" "$log")" = 1 ] || fail "processes that are told of different attempts do not meet"
  for node in 1 2; do
    [ "$(grep "is told of attempt" "$folder/node$node.log" | tail -n 1)" = "is told of attempt $((node - 1))" ] ||
      fail "node $node is told of another attempt"
  done
  echo "ok: processes that are told of different attempts agree in torchrun's store"
}

# Prints the first address of this host that is not the loopback's.
outward_address() { ip -4 -o addr show scope global | awk '{ sub("/.*", "", $4); print $4; exit }'; }

run_torchrun() {
  local python=python3 address port node attempt
  if [ -d build/pytorch/torch ]; then export PYTHONPATH=$root/build/pytorch; fi
  if ! "$python" -c 'import torch.distributed.run' 2>/dev/null; then
    echo "not run: torchrun, which no Python here has (a wheel of PyTorch in build/pytorch would do)"
    return
  fi
  export TORCHRUN="$python -m torch.distributed.run"
  PROCESSES_PER_NODE=3 bash examples/launch/torchrun.sh "$show" >"$log" 2>&1 || fail "torchrun on one host"
  expect 3 "of 3 here" "/railyard-torchrun-" "torchrun: RANK="
  PROCESSES_PER_NODE=1 train 1 1 torchrun1 bash examples/launch/torchrun.sh
  PROCESSES_PER_NODE=2 train 2 1 torchrun2 bash examples/launch/torchrun.sh

  # Two agents of this host that call it by an address which other hosts could reach, and so believe to be on two.
  address=$(outward_address)
  if [ -z "$address" ]; then
    echo "not run: torchrun on several hosts, as this one has no address but that of the loopback"
    return
  fi
  port=$(free_ports 1)
  cat >"$folder/fails_once" <<SCRIPT
#!/usr/bin/env bash
if [ \$TORCHELASTIC_RESTART_COUNT = 0 ]; then '$show' && exit 1; fi
exec '$show'
SCRIPT
  chmod 755 "$folder/fails_once"
  export TORCHRUN="$TORCHRUN --local-addr $address" NODES=2 PROCESSES_PER_NODE=2 ENDPOINT=127.0.0.1:$port JOB=digits
  for node in 1 2; do
    timeout 120 bash examples/launch/torchrun.sh "$folder/fails_once" >"$folder/node$node.log" 2>&1 &
  done
  wait
  export RAILYARD_SECRET=0123456789abcdef0123456789abcdef
  for attempt in 0 1; do
    if ! grep -h "restart $attempt" "$folder"/node[12].log >"$log"; then
      cat "$folder"/node[12].log >"$log"
      fail "attempt $attempt"
    fi
    expect 4 "of 2 here" "met in torchrun's store at $address:"
  done
  for node in 1 2; do
    timeout 120 bash examples/launch/torchrun.sh "$digits" "$data" 1 "$folder/runs" torchrun4 >"$folder/node$node.log" 2>&1 &
  done
  wait
  cat "$folder"/node[12].log >"$log"
  check_training 4 torchrun4
  launchers+=(torchrun)
  run_killed 1
  run_killed 2
  run_uneven
  echo "ok: a run of which a process was killed goes on when torchrun starts it again"
  unset RAILYARD_SECRET
}

run_kubernetes() {
  python3 tests/launch/manifests.py "$(outward_address)" "$show" "$digits" "$data" "$folder/runs" >"$log" 2>&1 ||
    fail "the manifests"
  grep '^ok' "$log"
  if [ -z "$(outward_address)" ]; then
    echo "not run: pods that meet, as this host has no address but that of the loopback"
    return
  fi
  [ "$(grep -c -x -F "6 workers, weights $(weights_of 6)" "$log")" = 2 ] || fail "training in pods"
  echo "ok: both trained to the weights $(weights_of 6)"
}

on_host() { ip netns exec "railyard-$$-$1" "${@:2}"; }

# on_both COMMAND...: as process 0 on host one and as process 1 on host two.
on_both() {
  local other
  on_host two env RANK=1 WORLD_SIZE=2 "$@" >"$folder/two.log" 2>&1 &
  other=$!
  on_host one env RANK=0 WORLD_SIZE=2 "$@" >"$log" 2>&1 || true
  wait "$other" || true
  cat "$folder/two.log" >>"$log"
}

run_hosts() {
  local host number=1 trained tls is_read
  if ! ip netns add "railyard-$$-one" 2>"$log"; then
    echo "not run: hosts, as this kernel lets nobody make networks ($(cat "$log"))"
    return
  fi
  ip netns add "railyard-$$-two"
  ip link add railyard-one netns "railyard-$$-one" type veth peer name railyard-two netns "railyard-$$-two"
  for host in one two; do
    on_host "$host" ip link set lo up
    on_host "$host" ip address add "fd77::$number/64" dev "railyard-$host" nodad
    on_host "$host" ip link set "railyard-$host" up
    number=$((number + 1))
  done

  # Only IPv6, no names, no route to anywhere else.
  on_both MASTER_ADDR=fd77::1 MASTER_PORT=29500 "$show"
  expect 2 "met in the fixed address fd77::1:29500"
  mkdir "$folder/ipv6" "$folder/both"
  on_both RAILYARD_RENDEZVOUS="$folder/ipv6" MASTER_ADDR=one "$show"
  expect 2 "met in $folder/ipv6/railyard-one-0.0"

  on_host one ip address add 10.77.0.1/24 dev railyard-one
  on_host two ip address add 10.77.0.2/24 dev railyard-two
  on_both MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 "$show"
  expect 2 "met in the fixed address 10.77.0.1:29500"
  on_both RAILYARD_RENDEZVOUS="$folder/both" MASTER_ADDR=one "$show"
  expect 2 "met in $folder/both/railyard-one-0.0"

  on_both RAILYARD_RENDEZVOUS="$folder/both" MASTER_ADDR=one "$digits" "$data" 2 "$folder/runs" hosts4
  # Sums across hosts are added in another order.
  grep -q "^4 workers, weights $(weights_of 4 | cut -c1-6)" "$log" || fail "training on two hosts"
  trained=$(grep "^4 workers" "$log")
  echo "ok: two hosts with two workers each: $trained, one host $(weights_of 4)"

  # With TLS to the same bits, and who listens on the wire reads what is said without it only.
  for tls in 0 1; do
    train_overheard "$tls" "$trained"
    grep -a -q -F "name \"overheard$tls\"" "$folder/heard" && is_read=1 || is_read=0
    [ "$(stat -c %s "$folder/heard")" -gt 1000000 ] || fail "hearing what two hosts say"
    [ "$is_read" != "$tls" ] || fail "reading the run's name with RAILYARD_TLS=$tls ($is_read)"
  done
  echo "ok: with TLS they train to the same, and the run's name is not to be read between them"
  on_both RAILYARD_RENDEZVOUS="$folder/both" MASTER_ADDR=one sh -c "RAILYARD_TLS=\$RANK exec '$digits' '$data' 2 '$folder/runs' differ"
  [ "$(grep -c "is set to go by TLS, and the process that leads without it" "$log")" -ge 2 ] || fail "differing in TLS"
  echo "ok: where one has TLS and the other has not, both say so"

  train_limited "$trained"
  export RAILYARD_SECRET=0123456789abcdef0123456789abcdef
  train_delayed "$trained"
  for tls in 0 1; do train_attacked "$tls" "$trained"; done
}

# train_overheard TLS EXPECTED: trains on both hosts, and leaves in the file `heard` all that has gone between them.
train_overheard() {
  local ear
  ip netns exec "railyard-$$-one" python3 tests/launch/overhear.py railyard-one "$folder/heard" >"$folder/ear" 2>&1 &
  ear=$!
  until grep -q listens "$folder/ear"; do
    kill -0 "$ear" || fail "listening ($(cat "$folder/ear"))"
    sleep 0.1
  done
  on_both RAILYARD_TLS="$1" RAILYARD_RENDEZVOUS="$folder/both" MASTER_ADDR=one "$digits" "$data" 2 "$folder/runs" "overheard$1"
  kill "$ear"
  wait "$ear"
  grep -q -x -F "$2" "$log" || fail "training overheard with RAILYARD_TLS=$1"
}

# train_attacked TLS EXPECTED: the same while others connect who do not know the secret, from both hosts.
train_attacked() {
  local host connections attackers=()
  for host in one two; do
    ip netns exec "railyard-$$-$host" python3 tests/launch/attack.py 10.77.0.1 29500 200 >"$folder/attacks_$host" 2>&1 &
    attackers+=($!)
  done
  on_both MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 RAILYARD_TLS="$1" "$digits" "$data" 2 "$folder/runs" "attacked$1"
  kill "${attackers[@]}"
  wait "${attackers[@]}"
  connections=$(($(cat "$folder/attacks_one") + $(cat "$folder/attacks_two")))
  grep -q -x -F "$2" "$log" || fail "training under attack with RAILYARD_TLS=$1"
  grep -q "refused a connection from 10.77.0.[12]:" "$log" || fail "naming who attacks"
  [ "$connections" -ge 100 ] || fail "attacking ($connections connections)"
  echo "ok: $connections hostile connections with RAILYARD_TLS=$1 changed nothing"
}

# pull_link NUMBER: of that host, and no packet says so: both parts live, and only the one of two hosts goes on.
pull_link() {
  rm -f "$folder/go"
  start_three env RAILYARD_RENDEZVOUS="$folder/meeting" timeout 180 "$counts" "$folder/go" "$folder/runs" "pulled$1" 2 3
  says "[rank 2] stands still at step 5" "$folder/h1.log"
  on_host h0 ip link set "port$1" down
  says "[rank 1] begins at step 5" "$folder"/h[1-3].log
  touch "$folder/go"
  wait
  on_host h0 ip link set "port$1" up
  cat "$folder"/h[1-3].log >"$log"
  [ "$(grep -c -x "sum 600" "$log")" = 1 ] || fail "the two hosts that are left have not ended the run"
  [ "$(cat "$folder/h$1.status")" = 75 ] || fail "the host whose link was pulled has not left with status 75"
}

run_regroup() {
  three_hosts_start || return 0
  mkdir "$folder/meeting"
  pull_link 3
  echo "ok: two hosts go on without a third whose link was pulled"
  pull_link 1
  grep -q "process 0, which led the run, is lost" "$log" || fail "nobody says that the one that led is lost"
  echo "ok: two hosts go on without the one that led, whose link was pulled"
}

launchers=()
for part in "${parts[@]}"; do
  echo "== $part"
  "run_$part"
done
if [ ${#launchers[@]} != 0 ]; then compare_launchers "${launchers[@]}"; fi
