// A rank of bench_collectives with libtorch's ProcessGroupGloo, as DistributedDataParallel uses it on CPUs.
//
//   bench_collectives_gloo BASE RANK RANKS BYTES ADDRESS
#include <iostream>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "turns.h"

int main(int argc, char** argv) try {
  if (argc != 6) throw std::runtime_error("this is a part of bench_collectives, which starts it");
  const std::string base = argv[1];
  const int rank = std::stoi(argv[2]);
  const int ranks = std::stoi(argv[3]);
  const auto elements = static_cast<std::int64_t>(std::stoull(argv[4]) / sizeof(float));
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(argv[5]));
  auto store = c10::make_intrusive<c10d::FileStore>(base + "store", ranks);
  const auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options);
  const at::Tensor memory = at::zeros({elements}, at::kFloat);
  std::vector<at::Tensor> tensors(1);  // kept between calls, as DDP keeps its buckets
  dtrain::bench::Subject subject;
  subject.memory = [&](std::size_t) { return memory.data_ptr<float>(); };
  subject.all_reduce = [&](float*, std::size_t count) {
    if (!tensors[0].defined() || tensors[0].numel() != static_cast<std::int64_t>(count)) {
      tensors[0] = memory.narrow(0, 0, static_cast<std::int64_t>(count));
    }
    group->allreduce(tensors)->wait();
  };
  subject.barrier = [&] { group->barrier()->wait(); };
  dtrain::bench::take_turns(base, rank, ranks, {{"gloo", subject}});
  subject.barrier();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_collectives_gloo: " << error.what() << "\n";
  return 1;
}
