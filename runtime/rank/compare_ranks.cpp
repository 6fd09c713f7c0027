#include "compare_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

namespace {

// Returns the first rank whose value differs from rank 0's.
std::optional<int> first_other(const std::vector<std::string>& values) {
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values[0]) return static_cast<int>(rank);
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> RankHosts::ranks_here() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < of_rank_.size(); ++rank) {
    if (of_rank_[rank].key == here_.key) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::size_t RankHosts::count() const {
  std::set<std::string> keys;
  for (const Host& host : of_rank_) keys.insert(host.key);
  return keys.size();
}

int RankHosts::most_ranks() const {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const Host& host : of_rank_) most = std::max(most, ++ranks[host.key]);
  return most;
}

std::string RankHosts::monitor_name(int rank) const {
  for (const Host& host : of_rank_) {
    // Two hosts with one name need different file names.
    if (host.name == here_.name && host.key != here_.key) return here_.name + "-" + std::to_string(rank);
  }
  return here_.name;
}

RankHosts compare_hosts(comm::ControlPlane& control, const host::HostIdentity& here, const std::string& started_by,
                        bool several_allowed) {
  std::vector<RankHosts::Host> of_rank;
  for (const std::string& text : control.gather("run.hosts", to_line({{"key", here.key}, {"name", here.name}}))) {
    const Json host = Json::parse(text);
    of_rank.push_back({host["key"].get<std::string>(), host["name"].get<std::string>()});
  }
  if (!several_allowed) {
    for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
      if (of_rank[rank].key == of_rank[0].key) continue;
      throw AgreedError(
          "rank " + std::to_string(rank) + " is on another host (" + of_rank[rank].name + ") than rank 0 (" +
              of_rank[0].name + "); " + started_by + " cannot start ranks on several hosts",
          "start all ranks on one host; or with mpirun; or set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK "
          "and LOCAL_WORLD_SIZE for each rank, as torchrun does");
    }
  }
  RankHosts hosts({here.key, here.name}, std::move(of_rank));
  const auto ranks_here = static_cast<int>(hosts.ranks_here().size());
  const bool as_expected = ranks_here == control.world().local_size;
  const auto unexpected = control.gather("run.local_sizes", as_expected ? "" : std::to_string(ranks_here));
  for (std::size_t rank = 0; rank < unexpected.size(); ++rank) {
    if (unexpected[rank].empty()) continue;
    throw AgreedError("rank " + std::to_string(rank) + " shares its machine with " + unexpected[rank] +
                          " ranks, counting itself, which is not what " + started_by + " says",
                      "hosts must have names of their own, and be listed under one name each");
  }
  return hosts;
}

void compare_experiments(comm::ControlPlane& control, const config::Experiment& experiment, const std::string& mode) {
  Json plan = config::to_json(experiment);
  // A rank that has not loaded the rules does not know their defaults.
  if (experiment.profiling_rules == config::ProfilingRules()) plan["profiling"].erase("rules");
  std::string mine = plan.dump() + mode;
  for (const bool on_gpus : {false, true}) {
    for (const auto& [name, value] : experiment.variables_of_ranks(on_gpus)) mine += name + "=" + value + '\0';
  }
  const auto all = control.gather("run.experiment", std::to_string(std::hash<std::string>{}(mine)));
  if (const auto other = first_other(all)) {
    throw AgreedError(
        "rank " + std::to_string(*other) + " was given another experiment than rank 0",
        "start every rank with the same experiment file, the same --set, and the same --mock, --evaluate or --predict");
  }
}

void check_folder_is_shared(comm::ControlPlane& control, const RankHosts& hosts, const std::filesystem::path& folder) {
  if (hosts.count() == 1) return;
  constexpr const char* kKey = "run.shared";
  const bool is_rank_0 = control.world().rank == 0;
  const std::string name = ".shared-" + random_hex(8);
  const std::filesystem::path mark = folder / (is_rank_0 ? name : control.get(kKey));
  if (is_rank_0) {
    std::ofstream(mark).close();
    control.set(kKey, name);
  }
  const auto seen = control.gather(kKey, std::filesystem::exists(mark) ? "yes" : "no");
  if (is_rank_0) std::filesystem::remove(mark);
  if (const auto other = first_other(seen)) {
    throw AgreedError("the run's folder " + folder.string() + " of rank 0 (" + hosts.of(0).name + ") is not on " +
                          hosts.of(*other).name + ", where rank " + std::to_string(*other) + " runs",
                      "give a folder that all hosts share with --run-dir, under the same path everywhere; or start the "
                      "run with `dtrain launch` and launcher: mpi, which collects what the hosts have written");
  }
}

comm::Backend backend_for(const std::optional<comm::Backend>& wanted, const RankHosts& hosts, bool has_mpi) {
  const std::size_t count = hosts.count();
  if (!wanted) {
    return comm::automatic_backend({.hosts = count, .most_on_a_host = hosts.most_ranks(), .has_mpi = has_mpi});
  }
  if (count == 1 || comm::spans_hosts(*wanted)) return *wanted;
  std::vector<std::string> others = comm::words_of_backends(comm::spans_hosts);
  others.insert(others.begin(), comm::kAutoBackend);
  const std::string last = others.back();
  others.pop_back();
  throw AgreedError("communication.backend is " + std::string(word_of(*wanted)) + ", but the ranks are on " +
                        std::to_string(count) + " hosts",
                    "use " + join(others, ", ") + " or " + last);
}

namespace {

// The facts that a rank tells the others.
struct Seen {
  std::vector<std::string> ids;
  bool is_order_known = true;
  std::string shares_as;
  std::string why_none;
  bool any_unusable = false;
  pid_t pid = 0;
};

std::vector<Seen> exchange(comm::ControlPlane& control, const GpuView& view) {
  std::vector<std::string> ids;
  for (const host::VisibleGpu& gpu : view.gpus) ids.push_back(gpu.id);
  const Json mine = {{"ids", ids},
                     {"order", view.is_order_known},
                     {"shares_as", view.shares_as},
                     {"why_none", view.why_none},
                     {"unusable", view.any_unusable},
                     {"pid", ::getpid()}};
  std::vector<Seen> ranks;
  for (const std::string& text : control.gather("run.gpus", to_line(mine))) {
    const Json json = Json::parse(text);
    ranks.push_back({json["ids"].get<std::vector<std::string>>(), json["order"].get<bool>(),
                     json["shares_as"].get<std::string>(), json["why_none"].get<std::string>(),
                     json["unusable"].get<bool>(), json["pid"].get<pid_t>()});
  }
  return ranks;
}

struct Host {
  std::string name;
  std::vector<int> ranks;
};

std::vector<Host> hosts_in_order(const RankHosts& hosts, int ranks) {
  std::map<std::string, std::size_t> places;
  std::vector<Host> result;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto [place, is_new] = places.try_emplace(hosts.of(rank).key, result.size());
    if (is_new) result.push_back({hosts.of(rank).name, {}});
    result[place->second].ranks.push_back(rank);
  }
  return result;
}

constexpr const char* kAllowed = "NCCL_MULTI_RANK_GPU_ENABLE";

// Returns what a rank's variables say of sharing its GPU; empty: it must not. NCCL refuses ranks of one host on one
// GPU, unless each says by NCCL_HOSTID that it is on a host of its own, or NCCL, from 2.30 on, is allowed to take them.
std::string shares_as(const Variables& variables) {
  const auto allowed = variables.find(kAllowed);
  if (allowed != variables.end() && allowed->second == "1") return kAllowed;
  const auto own_host = variables.find("NCCL_HOSTID");
  return own_host == variables.end() ? "" : "host " + own_host->second;
}

bool may_share(const std::string& one, const std::string& other) {
  if (one.empty() || other.empty()) return false;
  return one == other ? one == kAllowed : one != kAllowed && other != kAllowed;
}

// Sets the index of each of the host's ranks. Returns the error; empty: each rank has a GPU of its own.
std::string give_out(const Host& host, const std::vector<Seen>& seen, std::vector<int>& index) {
  std::map<std::string, std::vector<int>> owners;
  for (std::size_t local = 0; local < host.ranks.size(); ++local) {
    const int rank = host.ranks[local];
    const Seen& its = seen[static_cast<std::size_t>(rank)];
    if (its.ids.empty())
      return "host " + host.name + ": no GPU is visible to rank " + std::to_string(rank) + ": " + its.why_none;
    if (its.ids.size() < host.ranks.size() && its.ids.size() > 1) {
      return "host " + host.name + ": " + count_of(host.ranks.size(), "rank") + ", but " +
             count_of(its.ids.size(), "GPU") + " visible to rank " + std::to_string(rank) + " (" + join(its.ids, ", ") +
             ")";
    }
    const std::size_t place = its.ids.size() < host.ranks.size() ? 0 : local;
    index[static_cast<std::size_t>(rank)] = static_cast<int>(place);
    if (!its.is_order_known) continue;
    std::vector<int>& earlier = owners[its.ids[place]];
    const auto other = std::find_if_not(earlier.begin(), earlier.end(), [&](int owner) {
      return may_share(its.shares_as, seen[static_cast<std::size_t>(owner)].shares_as);
    });
    if (other == earlier.end()) {
      earlier.push_back(rank);
      continue;
    }
    const std::string pair = "ranks " + std::to_string(*other) + " and " + std::to_string(rank);
    return its.ids.size() == 1 ? "host " + host.name + ": " + count_of(host.ranks.size(), "rank") + ", but " + pair +
                                     " see one GPU, the same (" + its.ids[place] + ")"
                               : "host " + host.name + ": " + pair + " would use the same GPU (" + its.ids[place] +
                                     "), because their CUDA_VISIBLE_DEVICES differ";
  }
  return {};
}

PlacedGpu placed(const GpuView& view, int index) {
  const host::VisibleGpu& gpu = view.gpus[static_cast<std::size_t>(index)];
  return gpu.info ? PlacedGpu{gpu.info->index, gpu.info->uuid, gpu.name()} : PlacedGpu{-1, gpu.id, gpu.name()};
}

GpuUse use_of_mine(const PlacedGpu& gpu, const std::string& host, const std::set<pid_t>& own) {
  const auto setups = gpu.index < 0 ? std::nullopt : look_at_gpu_setups(kGpuPatienceOfRuns);
  if (!setups) return {};
  const auto setup = std::find_if(setups->gpus.begin(), setups->gpus.end(),
                                  [&](const host::GpuSetup& facts) { return facts.index == gpu.index; });
  return setup == setups->gpus.end() ? GpuUse() : use_of_gpu(*setup, "host " + host + ": " + text_of(gpu), own);
}

// Exchanges the known facts of each rank's GPU.
void name_gpus(comm::ControlPlane& control, const GpuView& view, const std::string& host, const std::set<pid_t>* own,
               RankGpus& gpus) {
  Json mine = Json::object();
  if (view.is_order_known) {
    const PlacedGpu gpu = placed(view, *gpus.cuda_index);
    mine["gpu"] = {{"index", gpu.index}, {"uuid", gpu.uuid}, {"name", gpu.name}};
    const GpuUse use = own ? use_of_mine(gpu, host, *own) : GpuUse();
    mine["use"] = {use.warning, use.refusal, use.remedy};
  }
  for (const std::string& text : control.gather("run.gpus-chosen", to_line(mine))) {
    const Json json = Json::parse(text);
    auto& rank = gpus.ranks.emplace_back();
    if (!json.contains("gpu")) continue;
    rank = PlacedGpu{json["gpu"]["index"].get<int>(), json["gpu"]["uuid"].get<std::string>(),
                     json["gpu"]["name"].get<std::string>()};
    const auto use = json["use"].get<std::vector<std::string>>();
    if (!use[1].empty()) throw AgreedError(use[1], use[2]);
    if (!use[0].empty()) gpus.warnings.push_back(use[0]);
  }
}

}  // namespace

GpuView look_at_visible_gpus(config::SlotType wanted, const Variables& variables) {
  const auto seen = look_at_gpus(kGpuPatienceOfRuns);
  if (!seen) {
    return {.why_none = "NVIDIA's driver does not answer within " + std::to_string(kGpuPatienceOfRuns.count()) + " s"};
  }
  const auto variable = variables.find("CUDA_VISIBLE_DEVICES");
  const auto value = variable == variables.end() ? std::nullopt : std::optional(variable->second);
  GpuView view{.gpus = host::visible_gpus(seen->gpus, value),
               .is_order_known = !host::is_order_unknown(seen->gpus, variables),
               .shares_as = shares_as(variables)};
  if (!view.gpus.empty()) {
    if (wanted == config::SlotType::kAuto) view.why_none = why_no_cuda("/proc/self/exe", "");
    view.any_unusable = !view.why_none.empty();
    if (view.any_unusable) view.gpus.clear();
    return view;
  }
  if (!seen->gpus.empty()) {
    view.why_none = "CUDA_VISIBLE_DEVICES=" + value.value_or("") + " hides its " + count_of(seen->gpus.size(), "GPU");
  } else {
    view.why_none = seen->warnings.empty() ? "NVIDIA's driver (NVML) reports none" : join(seen->warnings, "; ");
  }
  return view;
}

void check_one_model(const config::Experiment& experiment, const RankGpus& gpus) {
  const auto is_power_sgd = [](const comm::Compression& compression) {
    return std::holds_alternative<comm::PowerSgd>(compression);
  };
  const config::Optimizations& o = experiment.optimizations;
  if (!is_power_sgd(o.gradient_compression) && !(o.local_sgd && is_power_sgd(o.local_sgd->compression))) return;
  const std::optional<PlacedGpu>* first = nullptr;
  for (const auto& gpu : gpus.ranks) {
    if (!gpu) continue;
    if (!first) first = &gpu;
    if (gpu->name == (*first)->name) continue;
    throw AgreedError("PowerSGD needs GPUs of one model, and the ranks have " + (*first)->name + " and " + gpu->name +
                          ": their products may round differently, so the ranks' weights would drift apart",
                      "use another kind of compression, or GPUs of one model");
  }
}

RankGpus choose_gpus(comm::ControlPlane& control, const RankHosts& hosts, config::SlotType wanted, const GpuView& view,
                     bool look_for_others) {
  RankGpus gpus;
  if (wanted == config::SlotType::kCpu) return gpus;
  const std::vector<Seen> seen = exchange(control, view);
  std::vector<int> index(seen.size(), -1);
  std::vector<std::string> problems;
  std::vector<std::string> with_gpus;
  bool any_visible = false;
  for (const Host& host : hosts_in_order(hosts, static_cast<int>(seen.size()))) {
    std::string problem = give_out(host, seen, index);
    if (problem.empty()) {
      with_gpus.push_back(host.name);
    } else {
      problems.push_back(std::move(problem));
    }
  }
  for (const Seen& its : seen) any_visible = any_visible || !its.ids.empty() || its.any_unusable;
  if (!problems.empty() && wanted == config::SlotType::kCuda) {
    throw AgreedError("resources.slot_type is cuda, but " + join(problems, "; "),
                      "dtrain doctor checks GPUs and driver; start one rank for each GPU, or train on CPUs with "
                      "resources.slot_type: cpu");
  }
  if (!problems.empty() && !with_gpus.empty()) {
    throw AgreedError("resources.slot_type is auto, and some hosts have a GPU for each of their ranks (" +
                          join(with_gpus, ", ") + "), but not all: " + join(problems, "; "),
                      "start ranks on hosts with GPUs alone, or train on CPUs with resources.slot_type: cpu");
  }
  if (!problems.empty()) {
    if (any_visible) gpus.why_cpu = join(problems, "; ");
    return gpus;
  }
  gpus.on_gpus = true;
  gpus.cuda_index = index[static_cast<std::size_t>(control.world().rank)];
  std::set<pid_t> own;
  for (const int rank : hosts.ranks_here()) own.insert(seen[static_cast<std::size_t>(rank)].pid);
  name_gpus(control, view, hosts.here().name, look_for_others ? &own : nullptr, gpus);
  return gpus;
}

}  // namespace dtrain::rank
