# SPDX-License-Identifier: MIT
# Sourced by run.sh: what two hosts, one and two, train to by networks that are slow, or lose what they are given.

# train_limited EXPECTED: the same bits where the hosts send no more than so much to each other.
train_limited() {
  local host held=0
  for host in one two; do
    on_host "$host" tc qdisc add dev "railyard-$host" root tbf rate 5mbit burst 16kb latency 1s ||
      fail "limiting what a host sends"
  done
  on_both RAILYARD_RENDEZVOUS="$folder/both" MASTER_ADDR=one "$digits" "$data" 2 "$folder/runs" limited
  for host in one two; do
    held=$((held + $(on_host "$host" tc -s qdisc show dev "railyard-$host" | sed -n 's/.*overlimits \([0-9]*\).*/\1/p')))
    on_host "$host" tc qdisc delete dev "railyard-$host" root
  done
  grep -q -x -F "$1" "$log" || fail "training with 5 Mbit/s between the hosts"
  [ "$held" -gt 0 ] || fail "limiting what the hosts send"
  echo "ok: with 5 Mbit/s between them ($held packets were held back) they train to the same"
}

# train_delayed EXPECTED: the same bits by a network that takes its time and loses some of what it is given, also of what
# the hosts say to find each other.
train_delayed() {
  local network packets
  python3 tests/launch/slow_network.py "railyard-$$-one" 10.79.0.1 "railyard-$$-two" 10.79.0.2 3 0.01 \
    >"$folder/slow" 2>&1 &
  network=$!
  until grep -q ready "$folder/slow"; do
    kill -0 "$network" || fail "making a slow network ($(cat "$folder/slow"))"
    sleep 0.1
  done
  on_both MASTER_ADDR=10.79.0.1 MASTER_PORT=29500 "$show"
  expect 2 "met in the fixed address 10.79.0.1:29500"
  on_both MASTER_ADDR=10.79.0.1 MASTER_PORT=29500 "$digits" "$data" 2 "$folder/runs" delayed
  kill "$network"
  wait "$network"
  grep -q -x -F "$1" "$log" || fail "training by a network that loses packets"
  packets=($(tail -n 1 "$folder/slow"))
  [ "${packets[0]}" -gt 1000 ] && [ "${packets[1]}" -gt 10 ] || fail "losing packets ($(tail -n 1 "$folder/slow"))"
  echo "ok: by a network that delays ${packets[0]} packets and loses ${packets[1]} they train to the same"
}
