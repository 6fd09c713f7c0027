#include "compute_model.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/host/cpu.h"
#include "dtrain/profile/records.h"

namespace dtrain::bench {

namespace {

constexpr int kRanks = 2;
constexpr int kMostWarmUpTurns = 20;

struct Model {
  std::string name;
  std::string program;
  int batch = 0;  // of a rank
  int steps = 0;  // of a turn
  bool convolutions = false;
  Json hyperparameters = Json::object();
  bool only_by_name = false;  // too slow for a run of all models
};

const std::vector<Model>& models() {
  static const std::vector<Model> all{
      {"fashion_cnn", "bench_fashion_trial", 64, 12, true, Json::object()},
      {"mlp", "bench_step_trial", 32, 5, false, {{"width", 2048}, {"depth", 6}}},
      {"gpt",
       "bench_compute_trial",
       4,
       4,
       false,
       {{"model", "gpt"}, {"tokens", 8192}, {"length", 128}, {"layers", 6}, {"heads", 5}, {"width", 320}}},
      {"gpt_50m",
       "bench_compute_trial",
       2,
       3,
       false,
       {{"model", "gpt"}, {"tokens", 50304}, {"length", 128}, {"layers", 8}, {"heads", 8}, {"width", 512}},
       /*only_by_name=*/true},
      {"resnet18", "bench_compute_trial", 16, 5, true, {{"model", "resnet18"}}},
  };
  return all;
}

const Model& find(const std::string& name) {
  for (const Model& model : models()) {
    if (model.name == name) return model;
  }
  throw Error("there is no model '" + name + "'", "use fashion_cnn, mlp, gpt, gpt_50m or resnet18");
}

// Of ours: how many ranks divide the cores, and what its experiment says under `optimizations`.
struct OurSettings {
  int ranks = kRanks;
  Json optimizations = Json::object();
};
const std::map<std::string, OurSettings>& our_settings() {
  static const Json bf16{{"mixed_precision", "bf16"}, {"memory_format", "auto"}};
  static const Json pure_bf16{{"mixed_precision", "pure_bf16"}, {"memory_format", "auto"}};
  static const std::map<std::string, OurSettings> all{
      {"ours", {}},
      {"ours_bf16", {kRanks, bf16}},
      {"ours_pure_bf16", {kRanks, pure_bf16}},
      {"ours_one", {1, Json::object()}},
      {"ours_one_bf16", {1, bf16}},
      {"ours_one_pure_bf16", {1, pure_bf16}},
  };
  return all;
}

// What ddp_compute.py calls them, and in how many processes they run.
struct PeerSettings {
  std::string command;
  int ranks = kRanks;
};
const std::map<std::string, PeerSettings>& peer_settings() {
  static const std::map<std::string, PeerSettings> all{
      {"ddp", {"ddp"}},
      {"expert", {"expert"}},
      {"expert_bf16", {"expertbf"}},
      {"compiled", {"compiled"}},
      {"plain", {"ddp", 1}},
      {"plain_expert", {"expert", 1}},
      {"plain_bf16", {"expertbf", 1}},
  };
  return all;
}

std::filesystem::path beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

class Comparison {
 public:
  Comparison(const Model& model, const std::set<std::string>& contestants, int least_turns)
      : model_(model), least_turns_(least_turns), cpus_(host::allowed_cpus()) {
    if (cpus_.size() < kRanks) throw Error("bench_compute needs two cores", "give the machine or the container two");
    for (const std::string& name : contestants) {
      if (our_settings().contains(name)) {
        ours_.try_emplace(name, (scratch_.path() / (name + "-")).string(), our_settings().at(name).ranks);
      } else if (peer_settings().contains(name)) {
        peers_.push_back(name);
        const int ranks = peer_settings().at(name).ranks;
        peer_processes_.try_emplace(ranks, (scratch_.path() / ("peers" + std::to_string(ranks) + "-")).string(), ranks);
      } else {
        throw Error("there is no contestant '" + name + "'",
                    "use ours, ours_bf16, ours_pure_bf16, ours_one, ours_one_bf16, ours_one_pure_bf16, ddp, expert, "
                    "expert_bf16, compiled, plain, plain_expert or plain_bf16");
      }
    }
  }

  Json measure(Nanoseconds end) try {
    start_all();
    warm_up();
    std::map<std::string, std::vector<double>> times;
    for (int turn = 0; turn < least_turns_ || clock_.monotonic() < end; ++turn) {
      // Ours and theirs in turns, too.
      auto peer = peers_.begin();
      for (auto& [name, contestant] : ours_) {
        take_turn(name, &times[name]);
        if (peer != peers_.end()) take_turn(*peer, &times[*peer]), ++peer;
      }
      for (; peer != peers_.end(); ++peer) take_turn(*peer, &times[*peer]);
    }
    const Json counts = count_parameters();
    end_all();
    return row(times, counts);
  } catch (...) {
    show_log(log_);
    throw;
  }

 private:
  // `output`: of standard output; what else is said goes to the log.
  void start(std::vector<std::string> command, std::vector<int> cpus, int threads,
             const std::filesystem::path& output = {}) {
    ProcessOptions options;
    options.command = std::move(command);
    options.environment = {{"OMP_NUM_THREADS", std::to_string(threads)}, {"MKL_NUM_THREADS", std::to_string(threads)}};
    // The contestants take turns; none of them is to queue behind another.
    options.environment["DTRAIN_STATE_DIR"] = scratch_.path() / ("state" + std::to_string(processes_.size()));
    options.cpus = std::move(cpus);
    options.working_folder = scratch_.path();
    options.fds = {{1, open_log(output.empty() ? log_ : output)}, {2, open_log(log_)}};
    processes_.push_back(Process::start(options));
  }

  int open_log(const std::filesystem::path& file) {
    logs_.emplace_back(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!logs_.back()) throw SystemError("open " + file.string(), errno);
    return logs_.back().get();
  }

  std::filesystem::path run_folder(const std::string& name) const { return scratch_.path() / name; }

  // The first launch with so many ranks and threads measures the machine's limits, before it writes its plan: nothing
  // else runs meanwhile.
  void start_all() {
    std::map<int, std::string> first;
    for (const auto& [name, contestant] : ours_) first.try_emplace(our_settings().at(name).ranks, name);
    for (const auto& [ranks, name] : first) {
      start_ours(name);
      wait_for_plan(name);
    }
    for (const auto& [name, contestant] : ours_) {
      if (first.at(our_settings().at(name).ranks) != name) start_ours(name);
    }
    for (auto& [ranks, processes] : peer_processes_) start_peers(ranks, processes.base());
  }

  void start_ours(const std::string& name) {
    const OurSettings& settings = our_settings().at(name);
    Json hyperparameters = model_.hyperparameters;
    hyperparameters["global_batch_size"] = model_.batch * kRanks;
    const auto file = scratch_.path() / (name + ".yaml");
    std::ofstream(file) << Json{{"name", "bench-compute"},
                                {"entrypoint", beside(model_.program).string()},
                                {"hyperparameters", hyperparameters},
                                {"resources", {{"slots_per_trial", settings.ranks}}},
                                {"optimizations", settings.optimizations},
                                {"searcher", {{"max_length", {{"batches", 1'000'000}}}}},
                                {"data", {{"fifo", ours_.at(name).base()}}}}
                               .dump();
    start({beside("dtrain").string(), "launch", file.string(), "--run-dir", run_folder(name).string()}, {},
          kRanks / settings.ranks);
    launches_[name] = processes_.size() - 1;
  }

  void wait_for_plan(const std::string& name) {
    const Nanoseconds patience = clock_.monotonic() + std::chrono::seconds(60);
    while (!std::filesystem::exists(run_folder(name) / "plan.json")) {
      if (processes_.at(launches_.at(name)).wait(std::chrono::milliseconds(0)))
        throw Error("the launch of contestant " + name + " has ended");
      if (clock_.monotonic() > patience) throw Error("contestant " + name + " has no plan after 60 s");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  // A process for each rank, which make the steps of all contestants with as many ranks.
  void start_peers(int ranks, const std::string& fifo) {
    const int threads = kRanks / ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto first = cpus_.begin() + static_cast<std::ptrdiff_t>(rank) * threads;
      start({DTRAIN_SOURCE_DIR "/.deps/peers/bin/python", "-B", DTRAIN_SOURCE_DIR "/tests/bench/ddp_compute.py",
             std::to_string(rank), std::to_string(ranks), (scratch_.path() / "store").string(), fifo, model_.name,
             std::to_string(model_.batch * threads), model_.hyperparameters.dump(), std::to_string(threads)},
            {first, first + threads}, threads);
    }
  }

  std::vector<std::int64_t> peer_steps(const std::string& name, int steps) {
    const PeerSettings& settings = peer_settings().at(name);
    return peer_processes_.at(settings.ranks).steps(steps, settings.command);
  }

  // The first steps load code, compile, fill caches and grow heaps, and ours try strategies and formats in them.
  void warm_up() {
    for (const std::string& name : std::vector<std::string>(peers_)) {
      if (peer_steps(name, 1).front() > 0) {
        take_turn(name, nullptr);
        continue;
      }
      const PeerSettings& settings = peer_settings().at(name);
      const std::string base = peer_processes_.at(settings.ranks).base();
      std::getline(std::ifstream(base + settings.command + ".problem"), problems_[name]);
      std::erase(peers_, name);
    }
    for (auto& [name, contestant] : ours_) {
      for (int turn = 0; turn < kMostWarmUpTurns && (turn < 2 || !has_settled(name)); ++turn) take_turn(name, nullptr);
    }
  }

  Json plan(const std::string& name) const { return Json::parse(read_file(run_folder(name) / "plan.json")); }

  // Whether the run has decided what it tries in its first steps (one rank has no strategies to choose from), and has
  // the table of operators that the roofline needs.
  bool has_settled(const std::string& name) const {
    const bool has_table = std::filesystem::exists(run_folder(name) / "profile" / profile::operators_file_name(0));
    return (our_settings().at(name).ranks == 1 || plan(name).contains("strategy")) && has_table;
  }

  void take_turn(const std::string& name, std::vector<double>* times) {
    const auto own = ours_.find(name);
    const auto taken = own != ours_.end() ? own->second.steps(model_.steps) : peer_steps(name, model_.steps);
    if (!times) return;
    for (std::size_t i = 1; i < taken.size(); ++i) times->push_back(static_cast<double>(taken[i]) / 1e6);
  }

  // The same model on both sides.
  Json count_parameters() const {
    Json count;
    if (!peer_processes_.empty()) {
      std::int64_t number = 0;
      std::ifstream(peer_processes_.begin()->second.base() + "parameters") >> number;
      count = number;
    }
    for (const auto& [name, contestant] : ours_) {
      const Json own = plan(name).at("model").at("parameters");
      if (count.is_null()) count = own;
      if (own != count) {
        throw Error(model_.name + " has " + own.dump() + " parameters in C++ and " + count.dump() + " in Python");
      }
    }
    return count;
  }

  void end_all() {
    for (auto& [name, contestant] : ours_) contestant.end("0");
    for (auto& [ranks, processes] : peer_processes_) processes.end("end");
    for (Process& process : processes_) {
      if (!process.wait(std::chrono::seconds(60)))
        throw Error("a contestant of " + model_.name + " has not ended in 60 s");
    }
  }

  Json output_of(std::vector<std::string> command, const std::string& file) {
    start(std::move(command), {}, 1, scratch_.path() / file);
    processes_.back().wait();
    return Json::parse(read_file(scratch_.path() / file));
  }

  // What these operators take at best, while as many processes as there are ranks do the same; null where unknown.
  Json time_operators(const Json& operators, int ranks) {
    const auto file = scratch_.path() / "operators.json";
    std::ofstream(file) << to_line(operators);
    const int threads = kRanks / ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto first = cpus_.begin() + static_cast<std::ptrdiff_t>(rank) * threads;
      start({beside("operator_times").string(), file.string(), std::to_string(threads)}, {first, first + threads},
            threads, scratch_.path() / ("operators." + std::to_string(rank)));
    }
    for (auto process = processes_.end() - ranks; process != processes_.end(); ++process) process->wait();
    const Json times = Json::parse(read_file(scratch_.path() / "operators.0"));
    for (int rank = 0; rank < ranks; ++rank) {
      std::filesystem::remove(scratch_.path() / ("operators." + std::to_string(rank)));
    }
    return times;
  }

  // The step that the machine allows, over the median step: each operator of a batch at the best rate of its type and
  // shapes, or at the memory's bandwidth; the update at the memory's bandwidth.
  std::optional<double> roofline_share(const Json& roofline, const std::string& name, double parameters,
                                       double median_ms) {
    // AdamW in float32 reads a parameter, its gradient and two moments and writes all but the gradient; the gradient of
    // each further rank is read, too.
    constexpr double kUpdateBytes = 28, kGradientBytes = 4;
    if (roofline.at("operators").empty() || roofline.at("limit_gb_s").is_null()) return std::nullopt;
    const int ranks = our_settings().at(name).ranks;
    const Json times = time_operators(roofline.at("operators"), ranks);
    double seconds =
        parameters * (kUpdateBytes + kGradientBytes * (ranks - 1)) / (roofline.at("limit_gb_s").get<double>() * 1e9);
    for (std::size_t i = 0; i < times.size(); ++i) {
      const Json& one = roofline.at("operators").at(i);
      double ideal = one.at("ideal_s").is_null() ? 0 : one.at("ideal_s").get<double>();
      if (!times[i].is_null()) {
        const double best = times[i].get<double>() * one.at("calls").get<double>();
        ideal = std::max(ideal, std::min(best, one.at("seconds").get<double>()));
      }
      seconds += ideal;
    }
    return seconds * 1e3 / median_ms;
  }

  // The model's FLOPs over what the machine could do in the median step, and the limit that this rests on; the share of
  // the roofline.
  void add_limits(Json& row, const std::string& name, double median_ms) {
    const Json analysis =
        output_of({beside("dtrain").string(), "analyze", run_folder(name).string(), "--json"}, name + ".analysis");
    const Json& summary = analysis.at("summary");
    row["flops_per_step"] = summary.at("flops_per_step");
    const Json limit = summary.at("limit_gflops");  // of all ranks
    row[name + "_limit_gflops"] = limit;
    row[name + "_mfu"] = row[name + "_roofline"] = nullptr;
    if (limit.is_null() || row["flops_per_step"].is_null()) return;
    row[name + "_mfu"] = row["flops_per_step"].get<double>() / (median_ms * 1e6) / limit.get<double>();
    if (row.at("parameters").is_null()) return;
    const auto share = roofline_share(analysis.at("roofline"), name, row.at("parameters").get<double>(), median_ms);
    if (share) row[name + "_roofline"] = *share;
  }

  Json row(const std::map<std::string, std::vector<double>>& times, const Json& parameters) {
    Json row = {{"model", model_.name}, {"batch_per_rank", model_.batch}, {"parameters", parameters}};
    std::map<std::string, double> medians;
    for (const auto& [name, values] : times) {
      medians[name] = median_of(values);
      row[name + "_ms"] = medians[name];
      row["steps"][name] = values.size();
    }
    for (const auto& [name, problem] : problems_) {
      row[name + "_ms"] = nullptr;
      row[name + "_problem"] = problem;
    }
    const auto ratio = [&](const char* key, const char* peer, const char* own) {
      if (medians.contains(peer) && medians.contains(own)) row[key] = medians[peer] / medians[own];
    };
    ratio("default_ratio", "ddp", "ours");
    ratio("bf16_ratio", "ddp", "ours_bf16");
    ratio("pure_bf16_ratio", "ddp", "ours_pure_bf16");
    ratio("expert_float32_ratio", "expert", "ours");
    ratio("expert_ratio", "expert_bf16", "ours_bf16");
    ratio("compiled_ratio", "compiled", "ours_bf16");
    ratio("two_plain_ratio", "plain", "ours");
    ratio("two_plain_bf16_ratio", "plain_bf16", "ours_bf16");
    for (const auto& [two, peer] :
         {std::pair<std::string, std::string>{"ours", "plain"}, {"ours_bf16", "plain_bf16"}}) {
      const std::string one = two == "ours" ? "ours_one" : "ours_one_bf16";
      if (!medians.contains(two) || !medians.contains(one) || !medians.contains(peer)) continue;
      row[two + "_ranks"] = medians[one] < medians[two] ? 1 : kRanks;
      row[peer + "_ratio"] = medians[peer] / std::min(medians[one], medians[two]);
    }
    for (const auto& [name, contestant] : ours_) add_limits(row, name, medians.at(name));
    for (const std::string two : {"ours", "ours_bf16"}) {
      if (!row.contains(two + "_ranks")) continue;
      const bool one = row.at(two + "_ranks") == 1;
      row[two == "ours" ? "roofline" : "bf16_roofline"] = row.at(!one            ? two + "_roofline"
                                                                 : two == "ours" ? "ours_one_roofline"
                                                                                 : "ours_one_bf16_roofline");
    }
    return row;
  }

  const Model& model_;
  const int least_turns_;
  const std::vector<int> cpus_;
  const SystemClock clock_;
  const ScratchFolder scratch_;
  const std::filesystem::path log_ = scratch_.path() / "log";
  std::vector<UniqueFd> logs_;
  std::map<std::string, Contestant> ours_;
  std::map<int, Contestant> peer_processes_;  // by how many they are
  std::vector<std::string> peers_;
  std::map<std::string, std::string> problems_;  // of the contestants that do not run here
  std::vector<Process> processes_;
  std::map<std::string, std::size_t> launches_;  // of ours: which of the processes
};

}  // namespace

std::vector<std::string> compute_models() {
  std::vector<std::string> names;
  for (const Model& model : models()) {
    if (!model.only_by_name) names.push_back(model.name);
  }
  return names;
}

Json compare(const std::string& model, const std::set<std::string>& contestants, int least_turns, Nanoseconds end) {
  return Comparison(find(model), contestants, least_turns).measure(end);
}

}  // namespace dtrain::bench
