// SPDX-License-Identifier: MIT
// Four worker processes combine plain vectors, without LibTorch: the common collectives.
// Look at how little there is: buffer_of() views a vector, and the worker is the group.
#include <railyard/railyard.hpp>

#include <numeric>

namespace ry = railyard;

void talk(ry::Worker& worker) {
  const int rank = worker.rank();
  const int size = worker.world_size();

  std::vector<float> values(4, static_cast<float>(rank + 1));
  worker.all_reduce(ry::buffer_of(values), ry::ReduceOp::sum);  // in place: 1 + 2 + 3 + 4

  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
  const std::vector<std::int64_t> mine{rank};
  worker.all_gather(ry::buffer_of(mine), ry::buffer_of(ranks));

  std::vector<double> secret(1, rank == 0 ? 42.0 : 0.0);
  worker.broadcast(ry::buffer_of(secret), 0);

  const std::vector<std::int32_t> row(static_cast<std::size_t>(size), rank);
  std::vector<std::int32_t> column(row.size());
  worker.all_to_all(ry::buffer_of(row), ry::buffer_of(column));  // a transposition: one element from every rank

  std::vector<std::int32_t> from_left(1);
  if (rank > 0) worker.receive(ry::buffer_of(from_left), rank - 1);
  const std::vector<std::int32_t> to_right{rank};
  if (rank + 1 < size) worker.send(ry::buffer_of(to_right), rank + 1);

  worker.barrier();
  worker.report({{"sum", values[0]},
                 {"ranks", std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0})},
                 {"secret", secret[0]},
                 {"column", std::accumulate(column.begin(), column.end(), 0)},
                 {"mean", worker.mean(static_cast<double>(rank))}});
  fmt::print("rank {} of {} heard {} from the left\n", rank, size, rank > 0 ? from_left[0] : -1);
}

int main() {
  ry::Trainer trainer{talk, {.num_workers = 4}};  // Trainer<Gloo, Processes> is the default
  const ry::Result result = trainer.fit();
  if (!result) {
    fmt::print(stderr, "{}\n", result.error());
    return result.exit_status();
  }
  for (const auto& [name, value] : result.metrics()) fmt::print("{} {}\n", name, value.number());
}
