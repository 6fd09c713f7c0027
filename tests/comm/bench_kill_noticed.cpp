// bench_kill_noticed [--json]: how long after a rank was killed (SIGKILL) the others' collectives end with the error
// that names it, on one host. The median of several runs, of the slowest of the others each. The goal for shm is 100
// ms.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"
#include "harness/run_processes.h"
#include "mpirun.h"

namespace {

using namespace dtrain;

constexpr int kRuns = 5;
constexpr int kRanks = 3;

double milliseconds_between(std::int64_t begin, std::int64_t end) {
  return static_cast<double>(end - begin) / 1e6;
}

double shm_ms() {
  const SystemClock clock;
  std::int64_t killed = 0;
  const auto outcomes =
      test::run_processes(test::TestWorld(kRanks),
                          [&](comm::ControlPlane&, comm::Communicator& communicator) {
                            std::vector<float> data(5000);
                            try {
                              for (;;)
                                communicator.all_reduce(data.data(), data.size(), comm::DataType::kFloat32).wait();
                            } catch (const CommError&) {
                              throw CommError(std::to_string(clock.monotonic().count()));
                            }
                          },
                          {[&](const std::vector<pid_t>& pids) {
                            std::this_thread::sleep_for(std::chrono::milliseconds(100));
                            killed = clock.monotonic().count();
                            ::kill(pids.back(), SIGKILL);
                          }});
  double slowest = 0;
  for (int r = 0; r + 1 < kRanks; ++r) {
    slowest = std::max(slowest, milliseconds_between(killed, std::stoll(outcomes[static_cast<std::size_t>(r)].error)));
  }
  return slowest;
}

double mpi_ms() {
  const auto outcome = test::run_ranks_with_mpirun(kRanks, "mpi misuse killed");
  std::vector<std::int64_t> at(kRanks, 0);
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    int rank = 0;
    long long when = 0;
    if (std::sscanf(line.c_str(), "AT %d %lld", &rank, &when) == 2) at[static_cast<std::size_t>(rank)] = when;
  }
  if (std::count(at.begin(), at.end(), 0) != 0) throw Error("mpirun: not every rank said when:\n" + outcome.output);
  return milliseconds_between(at.back(), *std::max_element(at.begin(), at.end() - 1));
}

double median_of_runs(double (*run)()) {
  std::vector<double> values;
  for (int i = 0; i < kRuns; ++i) values.push_back(run());
  return median_low(std::move(values));
}

}  // namespace

int main(int argc, char** argv) {
  Json result = {{"shm_ms", median_of_runs(shm_ms)}};
  if (DTRAIN_HAS_MPI) result["mpi_ms"] = median_of_runs(mpi_ms);
  if (argc > 1 && std::strcmp(argv[1], "--json") == 0) {
    std::printf("%s\n", to_line(result).c_str());
  } else {
    for (const auto& [name, value] : result.items()) std::printf("%-8s %8.1f\n", name.c_str(), value.get<double>());
  }
}
