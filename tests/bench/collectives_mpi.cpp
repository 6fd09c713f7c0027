// A rank of bench_collectives with an MPI's own MPI_Allreduce, under that MPI's mpirun. One program for each MPI, which
// knows its name as DTRAIN_BENCH_MPI.
//
//   bench_collectives_openmpi BASE BYTES
//   bench_collectives_intelmpi BASE BYTES
#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include "turns.h"

int main(int argc, char** argv) try {
  MPI_Init(&argc, &argv);
  if (argc != 3) throw std::runtime_error("this is a part of bench_collectives, which starts it");
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  auto* const memory = static_cast<float*>(std::aligned_alloc(4096, (std::stoull(argv[2]) + 4095) / 4096 * 4096));
  dtrain::bench::Subject subject;
  subject.memory = [&](std::size_t) { return memory; };
  subject.all_reduce = [](float* data, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  subject.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  dtrain::bench::take_turns(argv[1], rank, ranks, {{DTRAIN_BENCH_MPI, subject}});
  std::free(memory);
  MPI_Finalize();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_collectives_" DTRAIN_BENCH_MPI ": " << error.what() << "\n";
  MPI_Abort(MPI_COMM_WORLD, 1);
}
