# SPDX-License-Identifier: MIT
# Sourced by run.sh: a real Slurm on this host, with a controller and three nodes, n1 to n3. Nothing outside of one folder
# is used, and nothing runs on after slurm_cluster_stop. Needs root.

# Waits until a command succeeds, for at most a number of seconds.
wait_until() {
  local end=$((SECONDS + $1)) && shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

# Prints as many TCP ports as asked for that are free now.
free_ports() {
  python3 - "$1" <<'PY'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))
PY
}

slurm_configuration() {
  local folder=$1 name ports
  name=$(hostname -s)
  read -r -a ports <<<"$(free_ports 5)"
  cat <<CONF
ClusterName=railyard
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$folder/munge/socket
SlurmctldPort=${ports[0]}
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/spool-%n
TmpFS=$folder/temporary-%n
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=n1 NodeHostname=$name NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=2
NodeName=n2 NodeHostname=$name NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=2
NodeName=n3 NodeHostname=$name NodeAddr=127.0.0.1 Port=${ports[3]} CPUs=2
PartitionName=all Nodes=ALL Default=YES OverSubscribe=YES State=UP MaxTime=INFINITE
CONF
}

# Munge refuses a folder that others than its user could change.
start_munge() {
  local folder=$1
  install -d -o munge -g munge -m 755 "$folder/munge"
  head -c 128 /dev/urandom >"$folder/munge/key"
  chown munge:munge "$folder/munge/key"
  chmod 600 "$folder/munge/key"
  runuser -u munge -- munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
}

all_idle() { [ "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" = 3 ]; }

# slurm_cluster_start FOLDER: an empty folder which everybody may enter.
slurm_cluster_start() {
  local folder=$1 node
  export SLURM_CONF=$folder/slurm.conf
  mkdir -p "$folder/state" "$folder"/{spool,temporary}-n{1,2,3}
  slurm_configuration "$folder" >"$SLURM_CONF"
  start_munge "$folder" || return 1
  slurmctld -c || return 1
  for node in n1 n2 n3; do slurmd -N $node || return 1; done
  wait_until 60 all_idle && return
  echo "the nodes of Slurm did not become idle:"
  sinfo -N -l || true
  tail -n 5 "$folder"/*.log
  return 1
}

slurm_cluster_stop() {
  local folder=$1 file
  [ -f "$folder/slurm.conf" ] || return 0
  scancel --user root 2>/dev/null || true
  wait_until 20 all_idle || true
  for file in "$folder"/slurmd-n*.pid "$folder/slurmctld.pid" "$folder/munge/pid"; do
    if [ -s "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
  done
  for file in "$folder"/slurmd-n*.pid "$folder/slurmctld.pid" "$folder/munge/pid"; do
    if [ -s "$file" ]; then wait_until 20 eval "! kill -0 $(cat "$file")" || kill -9 "$(cat "$file")" || true; fi
  done
}
