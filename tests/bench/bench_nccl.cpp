// NCCL through our communicator: are the results right, how long does an all_reduce take by size. Plain text, meant to
// be read (scripts/gpu_check.sh runs it).
//
//   bench_nccl [--ranks N] [--gpus G] [--seconds S] [--megabytes M]
//                                          N processes (1), rank r on GPU r mod G (as many as there are ranks); the
//                                          times of sizes up to M MiB (256)
//   bench_nccl … --rank R --port P         one of them
//
// More ranks than GPUs: each rank gets a NCCL_HOSTID of its own, for NCCL refuses two ranks of one host on one GPU.
// Exit codes: 0 right, 1 wrong or failed, 3 there is no NCCL or no GPU (it says which).
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <vector>

#include <unistd.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/comm/nccl.h"
#include "harness/elements.h"

namespace {

using namespace dtrain;
using comm::DataType;
using comm::ReduceOp;

constexpr int kNothingToRunOn = 3;

struct Arguments {
  int ranks = 1;
  int gpus = 0;
  int seconds = 120;
  int megabytes = 256;
  int rank = -1;
  int port = 0;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  const std::map<std::string, int*> known{{"--ranks", &arguments.ranks},     {"--gpus", &arguments.gpus},
                                          {"--seconds", &arguments.seconds}, {"--megabytes", &arguments.megabytes},
                                          {"--rank", &arguments.rank},       {"--port", &arguments.port}};
  for (int i = 1; i < argc; i += 2) {
    const auto found = known.find(argv[i]);
    if (found == known.end() || i + 1 == argc) throw ConfigError(std::string("what is '") + argv[i] + "'?");
    *found->second = std::stoi(argv[i + 1]);
  }
  if (arguments.gpus == 0) arguments.gpus = arguments.ranks;
  if (arguments.ranks < 1 || arguments.gpus < 1 || arguments.megabytes < 1) {
    throw ConfigError("--ranks, --gpus and --megabytes begin at 1");
  }
  return arguments;
}

comm::ControlOptions control_options(const Arguments& arguments) {
  comm::ControlOptions options;
  options.world = {arguments.rank, arguments.ranks, arguments.rank, arguments.ranks, "bench-host"};
  options.secret = "nothing to hide in a benchmark";
  options.session = "bench_nccl";
  options.timeout = std::chrono::seconds(arguments.seconds);
  options.log = make_null_logger();
  return options;
}

class Checks {
 public:
  Checks(comm::Communicator& comm, bool talks) : comm_(comm), talks_(talks) {}

  void expect(const std::string& what, const std::string& wrong) {
    ++done_;
    if (wrong.empty()) return;
    ++wrong_;
    std::printf("WRONG on rank %d: %s: %s\n", comm_.rank(), what.c_str(), wrong.c_str());
  }
  // The ranks' together.
  bool report() {
    std::int64_t sums[2] = {done_, wrong_};
    comm_.all_reduce(sums, 2, DataType::kInt64).wait();
    if (talks_) {
      std::printf("results: %lld checked on all ranks, %lld wrong\n", static_cast<long long>(sums[0]),
                  static_cast<long long>(sums[1]));
    }
    return sums[1] == 0;
  }

 private:
  comm::Communicator& comm_;
  bool talks_;
  std::int64_t done_ = 0;
  std::int64_t wrong_ = 0;
};

// Host memory in and out (staged), every type and operation.
void check_reductions(comm::Communicator& comm, Checks& checks) {
  for (const DataType type : test::kAllTypes) {
    for (const ReduceOp op : test::kAllOps) {
      if (!test::is_nccl_reduction(type, op)) continue;
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1003}, std::size_t{70'001}}) {
        std::vector<std::byte> in(count * size_of(type) + 1);
        std::vector<std::byte> out(in.size());
        test::fill_small(type, in.data(), count, comm.rank(), 1);
        comm.all_reduce(in.data(), out.data(), count, type, {.op = op}).wait();
        checks.expect(
            "all_reduce " + std::string(name_of(op)) + " " + std::string(name_of(type)) + " x" + std::to_string(count),
            test::first_wrong(type, out.data(), test::reduced_values(type, op, comm.world_size(), count, 1)));
      }
    }
  }
}

void check_movement(comm::Communicator& comm, Checks& checks) {
  constexpr std::size_t kCount = 10'007;
  const auto n = static_cast<std::size_t>(comm.world_size());
  const DataType type = DataType::kFloat32;
  const auto sums = test::reduced_values(type, ReduceOp::kSum, comm.world_size(), n * kCount, 2);
  std::vector<float> in(n * kCount);
  std::vector<float> out(n * kCount);
  const auto bytes = [](std::vector<float>& data) { return reinterpret_cast<std::byte*>(data.data()); };
  test::fill_small(type, bytes(in), in.size(), comm.rank(), 2);
  comm.reduce_scatter(in.data(), out.data(), kCount, type).wait();
  const std::size_t own = static_cast<std::size_t>(comm.rank()) * kCount;
  checks.expect("reduce_scatter", test::first_wrong(type, bytes(out), {sums.data() + own, kCount}));
  comm.all_gather(std::vector<float>(out.begin(), out.begin() + kCount).data(), in.data(), kCount, type).wait();
  checks.expect("all_gather", test::first_wrong(type, bytes(in), sums));
  test::fill_small(type, bytes(in), in.size(), comm.rank(), 2);
  comm.reduce_parts(in.data(), in.size(), type).wait();
  comm.gather_parts(in.data(), in.size(), type).wait();
  checks.expect("reduce_parts and gather_parts", test::first_wrong(type, bytes(in), sums));
  for (int root = 0; root < comm.world_size(); ++root) {
    test::fill_small(type, bytes(in), kCount, comm.rank(), 3);
    comm.broadcast(in.data(), kCount, type, root).wait();
    checks.expect("broadcast", test::first_wrong(type, bytes(in), test::small_values(root, kCount, 3)));
  }
}

// Through registered GPU memory: host to Buffer, Buffer to Buffer, Buffer to host, each a sum; all in one group, too.
void check_buffers(comm::Communicator& comm, Checks& checks) {
  constexpr std::size_t kCount = 50'003;
  const auto n = static_cast<float>(comm.world_size());
  const auto first = comm.allocate(kCount * sizeof(float));
  const auto second = comm.allocate(kCount * sizeof(float));
  const std::vector<float> in(kCount, 1.0f);
  std::vector<float> out(kCount);
  const auto all_are = [&](float want) {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (out[i] != want) return "element " + std::to_string(i) + " is " + std::to_string(out[i]);
    }
    return std::string();
  };
  comm.all_reduce(second->bytes().data(), out.data(), kCount, DataType::kFloat32).wait();
  checks.expect("a new Buffer is zero", all_are(0));
  const auto chain = [&] {
    comm.all_reduce(in.data(), first->bytes().data(), kCount, DataType::kFloat32, {.pre_scale = 0.5, .post_scale = 2});
    comm.all_reduce(first->bytes().data(), second->bytes().data(), kCount, DataType::kFloat32);
    return comm.all_reduce(second->bytes().data(), out.data(), kCount, DataType::kFloat32, {.op = ReduceOp::kMean});
  };
  chain().wait();
  checks.expect("Buffers one after the other", all_are(n * n));
  std::fill(out.begin(), out.end(), 0.0f);
  comm::Work last;
  {
    comm::Group group(comm);
    last = chain();
  }
  last.wait();
  checks.expect("Buffers in one group", all_are(n * n));
}

void measure(comm::Communicator& comm, std::size_t most, bool talks) {
  const SystemClock clock;
  const auto buffer = comm.allocate(most);
  const double n = comm.world_size();
  if (talks) {
    std::printf("all_reduce of float32 in registered GPU memory (algbw: bytes over time; busbw: times 2(n-1)/n)\n");
    std::printf("%12s %14s %14s %12s %12s\n", "bytes", "one by one us", "in a row us", "algbw GB/s", "busbw GB/s");
  }
  for (std::size_t bytes = 1024; bytes <= most; bytes *= 4) {
    const std::size_t count = bytes / sizeof(float);
    const int repeats = bytes <= (4u << 20) ? 100 : 20;
    const auto once = [&] { return comm.all_reduce(buffer->bytes().data(), count, DataType::kFloat32); };
    for (int i = 0; i < 5; ++i) once().wait();
    comm.barrier().wait();
    const Nanoseconds began = clock.monotonic();
    for (int i = 0; i < repeats; ++i) once().wait();
    const double blocking = static_cast<double>((clock.monotonic() - began).count()) / 1e3 / repeats;
    comm.barrier().wait();
    const Nanoseconds row_began = clock.monotonic();
    comm::Work last;
    for (int i = 0; i < repeats; ++i) last = once();
    last.wait();
    const double in_row = static_cast<double>((clock.monotonic() - row_began).count()) / 1e3 / repeats;
    const double algorithm = static_cast<double>(bytes) / in_row / 1e3;
    if (talks) {
      std::printf("%12zu %14.1f %14.1f %12.2f %12.2f\n", bytes, blocking, in_row, algorithm,
                  algorithm * 2 * (n - 1) / n);
    }
  }
}

int run_rank(const Arguments& arguments) {
  const bool talks = arguments.rank == 0;
  std::unique_ptr<comm::ControlPlane> control;
  if (talks) {
    comm::ControlEndpoint bound;
    control = comm::ControlPlane::serve(control_options(arguments), {}, &bound);
    if (arguments.ranks > 1) std::ofstream("/dev/fd/3") << bound.port << std::endl;  // the parent's pipe
  } else {
    control = comm::ControlPlane::connect(control_options(arguments),
                                          {"127.0.0.1", static_cast<std::uint16_t>(arguments.port)});
  }
  comm::CommunicatorOptions options;
  options.timeout = std::chrono::seconds(arguments.seconds) / 2;
  options.log = make_stderr_logger();
  comm::NcclOptions nccl;
  nccl.device = arguments.rank % arguments.gpus;
  bool right = false;
  try {
    const auto comm = comm::make_nccl_communicator(*control, nccl, options);
    Checks checks(*comm, talks);
    check_reductions(*comm, checks);
    check_movement(*comm, checks);
    check_buffers(*comm, checks);
    right = checks.report();
    measure(*comm, static_cast<std::size_t>(arguments.megabytes) << 20, talks);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", arguments.rank, describe(error).c_str());
    control->fail({arguments.rank, -1, error.what()});
    return 1;
  }
  control->finish();
  return right ? 0 : 1;
}

// The ranks as processes: rank 0 tells by a pipe where it listens.
int run_all(const Arguments& arguments) {
  int port = 0;
  int ends[2];
  if (pipe(ends) != 0) throw SystemError("cannot make a pipe", errno);
  std::vector<Process> ranks;
  for (int rank = 0; rank < arguments.ranks; ++rank) {
    ProcessOptions options;
    options.command = {executable_path().string(),
                       "--ranks",
                       std::to_string(arguments.ranks),
                       "--gpus",
                       std::to_string(arguments.gpus),
                       "--seconds",
                       std::to_string(arguments.seconds),
                       "--megabytes",
                       std::to_string(arguments.megabytes),
                       "--rank",
                       std::to_string(rank)};
    if (arguments.ranks > arguments.gpus) {
      options.environment["NCCL_HOSTID"] = "dtrain-bench-" + std::to_string(rank);
    }
    options.fds = {{0, 0}, {1, 1}, {2, 2}};
    if (rank == 0) options.fds[3] = ends[1];
    if (rank == 1) {
      close(ends[1]);
      char text[16] = {};
      if (read(ends[0], text, sizeof text - 1) <= 0) break;  // rank 0 has ended, and has said why
      port = std::stoi(text);
    }
    if (rank > 0) {
      options.command.insert(options.command.end(), {"--port", std::to_string(port)});
    }
    ranks.push_back(Process::start(options));
  }
  int worst = static_cast<int>(ranks.size()) == arguments.ranks ? 0 : 1;
  for (Process& rank : ranks) {
    const auto status = rank.wait(std::chrono::seconds(arguments.seconds));
    if (!status) {
      std::printf("the ranks did not end within %d s and were killed\n", arguments.seconds);
      return 1;
    }
    if (!status->success()) worst = 1;
  }
  return worst;
}

// Alone, in a process of its own: whether NCCL can be used at all.
int probe() {
  comm::ControlOptions options;
  options.secret = "nothing to hide in a benchmark";
  options.log = make_null_logger();
  try {
    const auto control = comm::ControlPlane::serve(options, {}, nullptr);
    comm::make_nccl_communicator(*control, {}, {});
  } catch (const CommError& error) {
    std::printf("skipped: %s\n", describe(error).c_str());
    return kNothingToRunOn;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (arguments.rank >= 0) return run_rank(arguments);
    if (const int cannot = probe()) return cannot;
    return run_all(arguments);
  } catch (const std::exception& error) {
    std::cerr << "bench_nccl: " << error.what() << "\n";
    return 1;
  }
}
