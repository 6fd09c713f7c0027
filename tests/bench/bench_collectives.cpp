// How long an all-reduce of float32 takes: ours, gloo's, Open MPI's and Intel MPI's, against each other and against
// memory.
//
//   bench_collectives [--ranks 2] [--json] [--quick] [--bytes N,N,…]
//   bench_collectives --links unshaped,1gbit,100mbit [--json] [--quick] [--bytes N,N,…]
//
// The backends' ranks are processes that are alive at once and take turns, a few operations each, so that what the
// machine does meanwhile hits all of them alike; while one is measured the others sleep in a read:
//   shm               our backend, on memory of the communicator
//   shm-unregistered  the same, on memory of the caller's own
//   tcp               our backend over 127.0.0.1, each rank as if on a host of its own
//   tcp-tls           the same with `communication.security: tls`
//   gloo              ProcessGroupGloo of the same libtorch, over 127.0.0.1
//   openmpi           MPI_Allreduce of Open MPI, as mpirun starts it
//   intelmpi          MPI_Allreduce of Intel MPI over shared memory, where scripts/setup.sh bench has fetched it
//   mpi               our backend over Open MPI
// Prints a JSON array of rows {op, bytes, ranks, backend, median_us, busbw_gbs, floor_us}: the median time of the
// slowest rank, the bus bandwidth as nccl-tests defines it (bytes / time x 2(n-1)/n), and the time in which all ranks
// at once read and write as many bytes as the operation makes them, without anything else (collectives_ours.cpp).
//
// With --links the ranks are one on each of two hosts (tests/harness/two_hosts.sh, needs root), joined by a link of
// each speed in turn: tcp, tcp-tls, gloo and Open MPI's TCP. The rows then have `link`, and floor_us is the time in
// which the link carries the operation's bytes (null for an unshaped link).
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/cpu.h"
#include "hosts.h"

namespace {

using namespace dtrain;
using bench::Contestant;

struct Settings {
  int ranks = 2;
  bool json = false;
  bool quick = false;
  std::vector<std::size_t> sizes{64,      256,     1024,    2048,     4096,       16'384,   65'536,
                                 262'144, 1 << 20, 4 << 20, 16 << 20, 26'214'400, 64 << 20, 256 << 20};
  std::vector<std::string> links;  // as tc writes them; empty: one host
};

[[noreturn]] void usage() {
  std::cerr << "usage: bench_collectives [--ranks N] [--json] [--quick] [--bytes N,N,...]\n"
               "       bench_collectives --links unshaped,1gbit,100mbit [--json] [--quick] [--bytes N,N,...]\n";
  std::exit(2);
}

std::vector<std::string> words_of(const std::string& list) {
  std::istringstream in(list);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      settings.json = true;
    } else if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--ranks" && i + 1 < argc) {
      settings.ranks = std::atoi(argv[++i]);
      if (settings.ranks < 1) usage();
    } else if (word == "--bytes" && i + 1 < argc) {
      settings.sizes.clear();
      for (const std::string& size : words_of(argv[++i])) {
        settings.sizes.push_back(std::strtoull(size.c_str(), nullptr, 10) / 4 * 4);
        if (settings.sizes.back() == 0) usage();
      }
    } else if (word == "--links" && i + 1 < argc) {
      settings.links = words_of(argv[++i]);
      if (settings.links.empty()) usage();
    } else {
      usage();
    }
  }
  if (settings.sizes.empty() || (!settings.links.empty() && settings.ranks != 2)) usage();
  return settings;
}

// The least time in which a link of this rate carries what an all-reduce of two ranks sends in each direction.
Json link_floor_us(const std::string& rate, std::size_t bytes) {
  std::size_t digits = 0;
  if (rate == "unshaped") return nullptr;
  const double number = std::stod(rate, &digits);
  const std::string unit = rate.substr(digits);
  const double bits = number * (unit == "gbit" ? 1e9 : unit == "mbit" ? 1e6 : throw Error("the rate is " + rate));
  return static_cast<double>(bytes) * 8e6 / bits;
}

std::string beside(const std::string& name) {
  return (executable_path().parent_path() / name).string();
}

class Run {
 public:
  explicit Run(const Settings& settings)
      : settings_(settings),
        cpus_(host::allowed_cpus()),
        largest_(*std::max_element(settings.sizes.begin(), settings.sizes.end())) {}

  Json measure() {
    Json rows = Json::array();
    if (settings_.links.empty()) {
      start_on_one_host();
      for (const std::size_t bytes : settings_.sizes) {
        const auto times = measure_size(bytes);
        add_rows(times, bytes, {{"floor_us", bench::median_of(times.at("floor")) / 1e3}}, rows);
      }
    } else {
      hosts_.shape(settings_.links.front());
      start_on_two_hosts();
    }
    for (const std::string& link : settings_.links) {
      hosts_.shape(link);
      for (const std::size_t bytes : settings_.sizes) {
        const auto times = measure_size(bytes);
        add_rows(times, bytes, {{"floor_us", link_floor_us(link, bytes)}, {"link", link}}, rows);
      }
    }
    for (auto& [name, team] : teams_) team->end("0");
    for (Process& process : processes_) process.wait(std::chrono::seconds(10));
    return rows;
  }

 private:
  void add_rows(const std::map<std::string, std::vector<double>>& times, std::size_t bytes, const Json& more,
                Json& rows) const {
    for (const char* name : {"shm", "shm-unregistered", "tcp", "tcp-tls", "gloo", "openmpi", "intelmpi", "mpi"}) {
      if (!times.contains(name)) continue;
      const double ns = bench::median_of(times.at(name));
      const double factor = 2.0 * (settings_.ranks - 1) / settings_.ranks;
      Json row{{"op", "all_reduce"}, {"bytes", bytes},        {"ranks", settings_.ranks},
               {"backend", name},    {"median_us", ns / 1e3}, {"busbw_gbs", static_cast<double>(bytes) / ns * factor}};
      row.update(more);
      rows.push_back(std::move(row));
    }
  }

  void start_on_two_hosts() {
    const std::string bytes = std::to_string(largest_);
    const std::string tcp = add_team("tcp-", {"tcp"});
    const std::string tls = add_team("tls-", {"tcp-tls"});
    const std::string gloo = add_team("gloo-", {"gloo"});
    for (const std::string rank : {"0", "1"}) {
      const char* host = rank == "0" ? "a" : "b";
      const std::string address = rank == "0" ? "10.71.1.1" : "10.71.1.2";
      start(hosts_.on(host, {beside("bench_collectives_ours"), tcp, rank, "2", bytes, "tcp", address}), {});
      start(hosts_.on(host, {beside("bench_collectives_ours"), tls, rank, "2", bytes, "tcp-tls", address}), {});
      start(hosts_.on(host, {beside("bench_collectives_gloo"), gloo, rank, "2", bytes, address}), {});
    }
    start(hosts_.mpirun({beside("bench_collectives_openmpi"), add_team("openmpi-", {"openmpi"}), bytes}), {});
  }

  // One team of ranks may have several subjects.
  void start_on_one_host() {
    const std::string bytes = std::to_string(largest_);
    const std::string ranks = std::to_string(settings_.ranks);
    const std::string ours = add_team("ours-", {"shm", "shm-unregistered", "floor"});
    const std::string tcp = add_team("tcp-", {"tcp"});
    const std::string tls = add_team("tls-", {"tcp-tls"});
    const std::string gloo = add_team("gloo-", {"gloo"});
    for (int rank = 0; rank < settings_.ranks; ++rank) {
      // As `dtrain launch` does: a core for each rank, where there are enough.
      const auto cores = static_cast<std::size_t>(settings_.ranks) <= cpus_.size()
                             ? std::vector<int>{cpus_[static_cast<std::size_t>(rank)]}
                             : std::vector<int>{};
      start({beside("bench_collectives_ours"), ours, std::to_string(rank), ranks, bytes}, cores);
      start({beside("bench_collectives_ours"), tcp, std::to_string(rank), ranks, bytes, "tcp", "127.0.0.1"}, {});
      start({beside("bench_collectives_ours"), tls, std::to_string(rank), ranks, bytes, "tcp-tls", "127.0.0.1"}, {});
      start({beside("bench_collectives_gloo"), gloo, std::to_string(rank), ranks, bytes, "127.0.0.1"}, {});
    }
    start_intel_mpi(bytes, ranks);
    if (find_in_path("mpirun", nullptr).empty() || !is_program(beside("bench_collectives_openmpi"))) {
      std::cerr << "bench_collectives: openmpi and mpi are left out: there is no Open MPI (Debian: libopenmpi-dev)\n";
      return;
    }
    std::vector<std::string> mpirun{"mpirun", "-np", ranks};
    if (::geteuid() == 0) mpirun.emplace_back("--allow-run-as-root");
    if (static_cast<std::size_t>(settings_.ranks) > cpus_.size()) mpirun.emplace_back("--oversubscribe");
    const auto under = [&](std::vector<std::string> command) {
      command.insert(command.begin(), mpirun.begin(), mpirun.end());
      start(std::move(command), {});
    };
    under({beside("bench_collectives_openmpi"), add_team("openmpi-", {"openmpi"}), bytes});
    mpirun.insert(mpirun.end(), {"--bind-to", "none"});  // its second thread wants to run where it can
    under({beside("bench_collectives_ours"), add_team("mpi-", {"mpi"}), "mpi", ranks, bytes});
  }

  void start_intel_mpi(const std::string& bytes, const std::string& ranks) {
    const std::string program = beside("bench_collectives_intelmpi");
    const std::string mpiexec = DTRAIN_SOURCE_DIR "/.deps/impi/bin/mpiexec.hydra";
    if (!is_program(program) || !is_program(mpiexec)) {
      std::cerr << "bench_collectives: intelmpi is left out: it is not here (scripts/setup.sh bench fetches it, for "
                   "x86-64; then configure and build again)\n";
      return;
    }
    start({mpiexec, "-n", ranks, "-genv", "I_MPI_FABRICS", "shm", program, add_team("intelmpi-", {"intelmpi"}), bytes},
          {});
  }

  std::string add_team(const std::string& name, const std::vector<std::string>& subjects) {
    const std::string base = (scratch_.path() / name).string();
    teams_[name] = std::make_unique<Contestant>(base, settings_.ranks);
    for (const std::string& subject : subjects) team_of_[subject] = teams_[name].get();
    return base;
  }

  void start(std::vector<std::string> command, std::vector<int> cpus) {
    ProcessOptions options;
    options.command = std::move(command);
    options.environment = {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}};
    options.cpus = std::move(cpus);
    options.working_folder = scratch_.path();
    if (!log_) log_.reset(::open(log_path().c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
    options.fds = {{1, log_.get()}, {2, log_.get()}};
    processes_.push_back(Process::start(options));
  }

  std::string log_path() const { return (scratch_.path() / "log").string(); }

  // Samples of all subjects, in turns, until each has had its time.
  std::map<std::string, std::vector<double>> measure_size(std::size_t bytes) {
    const double budget_ns = settings_.quick ? 0.2e9 : 1.5e9;
    const std::size_t least = settings_.quick ? 3 : 7;
    std::map<std::string, std::vector<double>> times;
    std::map<std::string, int> repeats;
    std::map<std::string, double> spent;
    std::set<std::string> left;
    for (const auto& [name, team] : team_of_) {
      const double once = turn(name, bytes, 1, 1).front();  // checks the result
      const double again = std::min(once, turn(name, bytes, 1, 1).front());
      repeats[name] = static_cast<int>(std::clamp(2e6 / again, 1.0, 2000.0));
      left.insert(name);
    }
    while (!left.empty()) {
      const std::set<std::string> now = left;
      for (const std::string& name : now) {
        const int samples = bytes < (4u << 20) ? 5 : 1;
        for (const double ns : turn(name, bytes, repeats[name], samples)) {
          times[name].push_back(ns);
          spent[name] += ns * repeats[name];
        }
        if (times[name].size() >= least && spent[name] >= budget_ns / 2) left.erase(name);
      }
    }
    return times;
  }

  std::vector<double> turn(const std::string& name, std::size_t bytes, int repeats, int samples) {
    try {
      const auto taken =
          team_of_.at(name)->steps(samples, name + " " + std::to_string(bytes) + " " + std::to_string(repeats));
      return {taken.begin(), taken.end()};
    } catch (...) {
      bench::show_log(log_path());
      throw;
    }
  }

  Settings settings_;
  std::vector<int> cpus_;
  std::size_t largest_;
  bench::ScratchFolder scratch_;
  bench::TwoHosts hosts_{scratch_.path() / "hosts"};
  UniqueFd log_;
  std::map<std::string, std::unique_ptr<Contestant>> teams_;
  std::map<std::string, Contestant*> team_of_;  // by subject
  std::vector<Process> processes_;
};

void print_table(const Json& rows) {
  std::printf("%10s %12s %18s %12s %10s %12s\n", "link", "bytes", "backend", "median us", "bus GB/s", "floor us");
  for (const Json& row : rows) {
    std::printf("%10s %12zu %18s %12.2f %10.2f %12.2f\n", row.value("link", "none").c_str(),
                row["bytes"].get<std::size_t>(), row["backend"].get<std::string>().c_str(),
                row["median_us"].get<double>(), row["busbw_gbs"].get<double>(),
                row["floor_us"].is_null() ? 0.0 : row["floor_us"].get<double>());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const Settings settings = parse(argc, argv);
  const Json rows = Run(settings).measure();
  if (settings.json) {
    std::cout << to_line(rows) << "\n";
  } else {
    print_table(rows);
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_collectives: " << dtrain::describe(error) << "\n";
  return 1;
}
