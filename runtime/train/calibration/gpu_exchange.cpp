#include "calibration/gpu_exchange.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "calibration/rank_processes.h"
#include "device/training_device.h"
#include "dtrain/base/log.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/nccl.h"
#include "dtrain/host/network.h"

namespace dtrain::calibration {
namespace {

using Watch = std::chrono::steady_clock;

constexpr std::array<int, 4> kBytes{64 << 10, 1 << 20, 25 << 20, 100 << 20};  // ascending
constexpr double kExchangeWindow = 0.01;                                      // seconds of operations in a row
constexpr double kLongestExchange = 0.1;  // seconds; a size that takes longer is left out, but not the first
constexpr int kMostCalls = 200;
constexpr int kExchangeRounds = 3;          // the best counts: other load only slows a round
constexpr unsigned kExchangeDeadline = 30;  // seconds; SIGALRM ends a process that hangs
constexpr std::chrono::seconds kPatience{20};

constexpr std::size_t kPort = 0;     // index of rank 0's port
constexpr std::size_t kSeconds = 1;  // index of what a rank's operations took
constexpr std::size_t kExchangeRates =
    2;  // index of the rates: all-reduce by size, all-gather by size; 0: not measured
constexpr std::size_t kExchangeValues = kExchangeRates + 2 * kBytes.size();

std::unique_ptr<comm::ControlPlane> connect(RankProcess& self, const std::string& secret) {
  comm::ControlOptions options;
  options.world = {self.rank(), self.ranks(), self.rank(), self.ranks(), host::host_identity().name};
  options.secret = secret;
  options.timeout = kPatience;
  options.log = make_null_logger();
  if (self.rank() == 0) {
    comm::ControlEndpoint bound;
    auto control = comm::ControlPlane::serve(options, {}, &bound);
    self.values()[kPort] = bound.port;
    self.barrier();
    return control;
  }
  self.barrier();
  return comm::ControlPlane::connect(options, {"127.0.0.1", static_cast<std::uint16_t>(self.values_of(0)[kPort])});
}

// Returns the seconds of a call of so many in a row, on the slowest rank. All ranks get the same.
double seconds_of(RankProcess& self, const std::function<comm::Work()>& call, int calls) {
  self.barrier();
  const auto begin = Watch::now();
  comm::Work last;
  for (int i = 0; i < calls; ++i) last = call();
  last.wait();
  self.values()[kSeconds] = std::chrono::duration<double>(Watch::now() - begin).count();
  self.barrier();
  double slowest = 0;
  for (int rank = 0; rank < self.ranks(); ++rank) slowest = std::max(slowest, self.values_of(rank)[kSeconds]);
  self.barrier();
  return slowest / calls;
}

// Writes the bytes a second of each size.
void measure_sizes(RankProcess& self, double* rates, const std::function<comm::Work(int bytes)>& operation) {
  double seconds = 0;  // of the size before
  for (std::size_t i = 0; i < kBytes.size(); ++i) {
    const int bytes = kBytes[i];
    if (i > 0 && seconds * bytes / kBytes[i - 1] > kLongestExchange) return;
    const auto call = [&] { return operation(bytes); };
    seconds_of(self, call, 1);  // NCCL connects, and chooses its algorithm
    seconds = seconds_of(self, call, 1);
    const int calls = std::clamp(static_cast<int>(kExchangeWindow / std::max(seconds, 1e-6)), 1, kMostCalls);
    for (int round = 0; round < kExchangeRounds; ++round) seconds = std::min(seconds, seconds_of(self, call, calls));
    if (seconds > 0) rates[i] = bytes / seconds;
  }
}

void measure_operations(RankProcess& self, comm::ControlPlane& control) {
  const auto communicator = comm::make_nccl_communicator(control, {.device = self.rank(), .compared_operations = 0},
                                                         {.timeout = kPatience, .log = make_null_logger()});
  const auto buffer = communicator->allocate(kBytes.back());
  std::byte* const data = buffer->bytes().data();
  constexpr auto kFloat = comm::DataType::kFloat32;
  double* const rates = self.values() + kExchangeRates;
  measure_sizes(self, rates, [&](int bytes) {
    return communicator->all_reduce(data, static_cast<std::size_t>(bytes) / sizeof(float), kFloat);
  });
  measure_sizes(self, rates + kBytes.size(), [&](int bytes) {
    const std::size_t count = static_cast<std::size_t>(bytes) / sizeof(float) / static_cast<std::size_t>(self.ranks());
    const std::size_t place = static_cast<std::size_t>(self.rank()) * count * sizeof(float);
    return communicator->all_gather(data + place, data, count, kFloat);
  });
  communicator->barrier().wait();
}

void measure_as_rank(RankProcess& self, const std::string& secret) {
  ::alarm(kExchangeDeadline);
  train::open_device(self.rank());
  const auto control = connect(self, secret);
  measure_operations(self, *control);
  control->finish();
}

std::map<int, double> by_size(const double* rates) {
  std::map<int, double> result;
  for (std::size_t i = 0; i < kBytes.size(); ++i) {
    if (rates[i] > 0) result[kBytes[i]] = rates[i] / 1e9;
  }
  return result;
}

}  // namespace

profile::GpuExchange measure_exchange(int gpus) {
  const std::string secret = random_hex(32);
  const std::vector<double> values = run_rank_processes({.ranks = gpus, .cpus = {}, .values = kExchangeValues},
                                                        [&](RankProcess& self) { measure_as_rank(self, secret); });
  const double* const rates = values.data() + kExchangeRates;  // of rank 0; those of the others are the same
  return {.gpus = gpus, .all_reduce_gb_s = by_size(rates), .all_gather_gb_s = by_size(rates + kBytes.size())};
}

}  // namespace dtrain::calibration
