// A rank of bench_collectives with our communicators: the subjects shm, shm-unregistered and floor, or tcp, or tcp-tls,
// or mpi.
//
//   bench_collectives_ours BASE RANK RANKS BYTES                      under nobody
//   bench_collectives_ours BASE RANK RANKS BYTES tcp|tcp-tls ADDRESS  the same, each rank as if on a host of its own
//   bench_collectives_ours BASE mpi RANKS BYTES                       under mpirun
//
// `floor` reads and writes as many bytes as an all-reduce makes a rank read and write (n parts of 1/n each), of memory
// of the same kind and size, all ranks at once: what memory allows.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/mpi.h"
#include "turns.h"

namespace {

using namespace dtrain;
using bench::Subject;

#if defined(__x86_64__)
#define DTRAIN_ALL_VECTORS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define DTRAIN_ALL_VECTORS
#endif

// Two streams at a time go through memory faster than one.
DTRAIN_ALL_VECTORS void read_and_write(float* data, std::size_t count) {
  float* __restrict first = data;
  float* __restrict second = data + count / 2;
  for (std::size_t i = 0; i < count / 2; ++i) {
    first[i] += 1.0f;
    second[i] += 1.0f;
  }
}

comm::ControlOptions control_options(int rank, int ranks, const std::string& host = "bench-host",
                                     comm::Security security = comm::Security::kProof) {
  comm::ControlOptions options;
  options.world = {rank, ranks, rank, ranks, host};
  options.security = security;
  options.secret = "nothing to hide in a benchmark";
  options.session = "bench";
  options.log = make_null_logger();
  return options;
}

std::string to_text(const comm::ControlEndpoint& endpoint) {
  return to_line({{"address", endpoint.address}, {"port", endpoint.port}});
}

comm::ControlEndpoint from_text(const std::string& text) {
  const Json json = Json::parse(text);
  comm::ControlEndpoint endpoint;
  endpoint.address = json.at("address");
  endpoint.port = json.at("port");
  return endpoint;
}

// Rank 0 tells the others where it listens, by a file that appears complete.
std::unique_ptr<comm::ControlPlane> meet(const std::string& base, const comm::ControlOptions& options,
                                         const std::string& address = "127.0.0.1") {
  const std::string path = base + "endpoint";
  if (options.world.rank == 0) {
    comm::ControlEndpoint endpoint;
    auto control = comm::ControlPlane::serve(options, {address, 0}, &endpoint);
    std::ofstream(path + ".new") << to_text(endpoint);
    std::filesystem::rename(path + ".new", path);
    return control;
  }
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::string text;
  std::getline(std::ifstream(path), text);
  return comm::ControlPlane::connect(options, from_text(text));
}

Subject subject_of(comm::Communicator& communicator, float* memory) {
  return {
      [memory](std::size_t) { return memory; },
      [&](float* data, std::size_t count) { communicator.all_reduce(data, count, comm::DataType::kFloat32).wait(); },
      [&] { communicator.barrier().wait(); }};
}

std::unique_ptr<float[], void (*)(void*)> plain_memory(std::size_t bytes) {
  return {static_cast<float*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), std::free};
}

void run_shm(const std::string& base, int rank, int ranks, std::size_t bytes) {
  const auto control = meet(base, control_options(rank, ranks));
  {
    const auto communicator = comm::make_shm_communicator(*control, {});
    const auto buffer = communicator->allocate(bytes);
    const auto plain = plain_memory(bytes);
    auto* const registered = reinterpret_cast<float*>(buffer->bytes().data());
    Subject floor = subject_of(*communicator, registered);
    floor.all_reduce = read_and_write;
    floor.reduces = false;
    bench::take_turns(base, rank, ranks,
                      {{"shm", subject_of(*communicator, registered)},
                       {"shm-unregistered", subject_of(*communicator, plain.get())},
                       {"floor", floor}});
    communicator->barrier().wait();
  }
  control->finish();
}

void run_tcp(const std::string& base, int rank, int ranks, std::size_t bytes, const std::string& subject,
             const std::string& address) {
  const auto security = subject == "tcp-tls" ? comm::Security::kTls : comm::Security::kProof;
  const auto control =
      meet(base, control_options(rank, ranks, "bench-host-" + std::to_string(rank), security), address);
  {
    comm::BackendParts parts{.control = *control, .address = address};
    parts.options.security = security;
    for (int r = 0; r < ranks; ++r) parts.members.push_back(r);
    const auto communicator = comm::TcpBackend().make(parts);
    const auto buffer = communicator->allocate(bytes);
    bench::take_turns(base, rank, ranks,
                      {{subject, subject_of(*communicator, reinterpret_cast<float*>(buffer->bytes().data()))}});
    communicator->barrier().wait();
  }
  control->finish();
}

void run_mpi(const std::string& base, int ranks, std::size_t bytes) {
  const auto job = comm::MpiJob::join({});
  const int rank = job->rank();
  comm::ControlEndpoint endpoint;
  std::unique_ptr<comm::ControlPlane> control;
  if (rank == 0) control = comm::ControlPlane::serve(control_options(0, ranks), {}, &endpoint);
  const std::string text = job->broadcast(rank == 0 ? to_text(endpoint) : "");
  if (rank != 0) control = comm::ControlPlane::connect(control_options(rank, ranks), from_text(text));
  {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(r);
    const auto communicator = job->make_communicator(*control, members, {});
    const auto buffer = communicator->allocate(bytes);
    bench::take_turns(base, rank, ranks,
                      {{"mpi", subject_of(*communicator, reinterpret_cast<float*>(buffer->bytes().data()))}});
    communicator->barrier().wait();
  }
  control->finish();
  job->succeed();
}

}  // namespace

int main(int argc, char** argv) try {
  const bool over_tcp = argc == 7 && std::string(argv[5]).starts_with("tcp");
  if (argc != 5 && !over_tcp) throw Error("this is a part of bench_collectives, which starts it");
  const std::string who = argv[2];
  const int ranks = std::stoi(argv[3]);
  const std::size_t bytes = std::stoull(argv[4]);
  if (who == "mpi") {
    run_mpi(argv[1], ranks, bytes);
  } else if (over_tcp) {
    run_tcp(argv[1], std::stoi(who), ranks, bytes, argv[5], argv[6]);
  } else {
    run_shm(argv[1], std::stoi(who), ranks, bytes);
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_collectives_ours: " << dtrain::describe(error) << "\n";
  return 1;
}
