#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains with processes that MPI starts; the program needs no MPI:
#   bash examples/launch/mpirun.sh PROGRAM [ARGUMENT...]                          # three processes of this host
#   HOSTS=node1,node2 bash examples/launch/mpirun.sh PROGRAM [ARGUMENT...]        # one process on each of these hosts
#   MPIRUN=mpiexec.hydra bash examples/launch/mpirun.sh PROGRAM [ARGUMENT...]     # MPICH's launcher instead of Open MPI's
# Expected: who has started the processes, as process 0 sees it, and then what PROGRAM prints:
#   Open MPI: OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=3, OMPI_COMM_WORLD_LOCAL_RANK=0, ...
#   PMI (mpiexec): PMI_RANK=0, PMI_SIZE=3, MPI_LOCALRANKID=0, MPI_LOCALNRANKS=3
set -eu
mpirun=${MPIRUN:-mpirun}
processes=${PROCESSES:-3}
options=()

# Processes of one host meet in a folder that only their user may enter. Those of several hosts need to be told where the
# first is, and a secret by which they know each other.
if [ -n "${HOSTS:-}" ]; then
  IFS=, read -r -a hosts <<<"$HOSTS"
  processes=${#hosts[@]}
  export MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}} MASTER_PORT=${MASTER_PORT:-29500}
  RAILYARD_SECRET=${RAILYARD_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
  export RAILYARD_SECRET
  options+=(--host "$HOSTS")
fi

if [[ $("$mpirun" --version 2>&1) == *HYDRA* ]]; then
  if [ -n "${HOSTS:-}" ]; then options+=(-ppn 1 -genvlist MASTER_ADDR,MASTER_PORT,RAILYARD_SECRET); fi
else
  options+=(--bind-to none --oversubscribe)
  # -x names a variable and takes its value from here, so that the secret stands in no command line.
  if [ -n "${HOSTS:-}" ]; then options+=(-x MASTER_ADDR -x MASTER_PORT -x RAILYARD_SECRET --map-by ppr:1:node); fi
  if [ "$(id -u)" = 0 ]; then options+=(--allow-run-as-root); fi
fi
exec "$mpirun" "${options[@]}" -n "$processes" "$@"
