#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains with processes that PyTorch's torchrun starts, and starts again after failures; the program needs no Python:
#   bash examples/launch/torchrun.sh PROGRAM [ARGUMENT...]                        # one process on this host
#   NODES=2 ENDPOINT=node1:29400 JOB=digits RAILYARD_SECRET_FILE=~/digits.secret \
#     bash examples/launch/torchrun.sh PROGRAM [ARGUMENT...]                      # the same on each of two hosts
# Make the secret once and bring it to every host: (umask 077 && openssl rand -hex 32 >~/digits.secret)
# Expected: who has started the processes, as process 0 sees it, and then what PROGRAM prints:
#   torchrun: RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR=node1, ...
set -eu
nodes=${NODES:-1}
options=(--nnodes "$nodes" --nproc-per-node "${PROCESSES_PER_NODE:-1}" --max-restarts "${MAX_RESTARTS:-3}")
if [ "$nodes" = 1 ]; then
  options+=(--standalone)
else
  options+=(--rdzv-backend c10d --rdzv-endpoint "$ENDPOINT" --rdzv-id "$JOB")
fi
exec ${TORCHRUN:-torchrun} "${options[@]}" --no-python "$@"
