// SPDX-License-Identifier: MIT
// The contestant Open MPI: one rank of it, started by mpirun. Argument: the path of the driver's Control.
#include "contestants.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <cstdlib>
#include <memory>

#include <mpi.h>

namespace {

class OpenMpiMember : public bench::Member {
 public:
  OpenMpiMember() = default;
  float* buffer(std::size_t count) override { return memory_.take(count); }
  void all_reduce(float* data, std::size_t count) override {
    if (MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
      throw std::runtime_error{"MPI_Allreduce failed"};
    }
  }

 private:
  bench::OwnMemory memory_;
};

bench::Control& open_control(const char* path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error{"the driver's memory cannot be opened"};
  void* memory = mmap(nullptr, sizeof(bench::Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw std::runtime_error{"the driver's memory cannot be mapped"};
  return *static_cast<bench::Control*>(memory);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  bench::Control& control = open_control(argv[1]);
  const char* rank_text = std::getenv("OMPI_COMM_WORLD_RANK");  // needed before MPI_Init: its threads are pinned alike
  const int rank = rank_text == nullptr ? 0 : std::atoi(rank_text);
  const int status = bench::run_rank(control, rank, [&] {
    MPI_Init(&argc, &argv);
    return std::make_unique<OpenMpiMember>();
  });
  if (status == 0) MPI_Finalize();
  return status;
}
