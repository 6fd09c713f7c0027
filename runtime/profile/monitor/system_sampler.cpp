#include "monitor/system_sampler.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <utility>

#include "dtrain/base/limits.h"
#include "dtrain/host/cpu.h"

namespace dtrain::profile {
namespace {

constexpr std::chrono::seconds kEndPatience{1};

// True if this container sees the process. NVML has process numbers of the host. In a container with numbers of its
// own, no process is seen, so that a rank does not count as a program outside the run; such programs are then not seen
// either.
bool is_seen(pid_t pid) {
  return ::kill(pid, 0) == 0 || errno == EPERM;
}

GpuSample to_sample(const host::GpuReading& reading, const std::set<pid_t>& ranks) {
  GpuSample sample{reading.index,       reading.util, reading.free_memory,
                   reading.temperature, std::nullopt, reading.slowed_by_heat};
  if (reading.processes) {
    const auto is_foreign = [&](pid_t pid) { return !ranks.contains(pid) && is_seen(pid); };
    sample.foreign_processes = static_cast<std::size_t>(std::ranges::count_if(*reading.processes, is_foreign));
  }
  return sample;
}

constexpr int kLookEvery = 20;  // samples

// Returns the growth of a counter; 0 after a reset of the device, which resets the counter.
double growth(std::uint64_t before, std::uint64_t after) {
  return after > before ? static_cast<double>(after - before) : 0.0;
}

void add_new(const std::vector<Cgroup>& more, std::vector<Cgroup>& groups) {
  for (const Cgroup& cgroup : more) {
    if (std::ranges::find(groups, cgroup.folder, &Cgroup::folder) == groups.end()) groups.push_back(cgroup);
  }
}

template <typename Map>
bool same_names(const Map& a, const Map& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return x.first == y.first; });
}

// Calls use(before, after) with the readings of each of these names that both maps have. False: there is none.
template <typename Map, typename Use>
bool each_in_both(const std::set<std::string>& names, const Map& before, const Map& after, const Use& use) {
  bool any = false;
  for (const std::string& name : names) {
    const auto b = before.find(name);
    const auto a = after.find(name);
    if (b == before.end() || a == after.end()) continue;
    use(b->second, a->second);
    any = true;
  }
  return any;
}

}  // namespace

GpuSampler::GpuSampler(const std::string& library, const Logger& logger)
    : shared_(std::make_shared<Shared>()),
      thread_(start_thread("the GPU sampler", [shared = shared_, library, logger] { run(shared, library, logger); })) {}

GpuSampler::~GpuSampler() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kEndPatience, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void GpuSampler::run(const std::shared_ptr<Shared>& shared, const std::string& library, const Logger& logger) {
  try {
    host::Gpus gpus(library, [&](const std::string& text) { logger->warn("{}", text); });
    std::unique_lock lock(shared->mutex);
    shared->found = gpus.list();
    while (!gpus.list().empty()) {
      shared->changed.wait(lock, [&] { return shared->stop || shared->asked > shared->answered; });
      if (shared->stop) break;
      const std::uint64_t number = shared->asked;
      lock.unlock();
      auto readings = gpus.read();
      lock.lock();
      shared->readings = std::move(readings);
      shared->answered = number;
      shared->changed.notify_all();
    }
  } catch (const std::exception& error) {
    logger->warn("no more metrics of GPUs: {}", error.what());
  }
  const std::lock_guard lock(shared->mutex);
  shared->ended = true;
  shared->changed.notify_all();
}

std::vector<GpuSample> GpuSampler::sample(const std::set<pid_t>& ranks, std::chrono::milliseconds patience) {
  std::unique_lock lock(shared_->mutex);
  const std::uint64_t number = ++shared_->asked;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, patience, [&] { return shared_->ended || shared_->answered >= number; });
  std::vector<GpuSample> samples;
  // If a slow driver answers after the sample is over, the next sample has that answer.
  if (shared_->answered == shared_->given) return samples;
  shared_->given = shared_->answered;
  for (const host::GpuReading& reading : shared_->readings) {
    const GpuSample sample = to_sample(reading, ranks);
    if (sample.util || sample.free_memory || sample.temperature || sample.foreign_processes || sample.slowed_by_heat)
      samples.push_back(sample);
  }
  return samples;
}

std::vector<host::GpuInfo> GpuSampler::take_new() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->found, {});
}

SystemSampler::SystemSampler(const Clock& clock, std::filesystem::path root)
    : clock_(clock), root_(std::move(root)), cgroups_(cgroups_of(0, root_)) {
  before_ = read({});
}

SystemSampler::Reading SystemSampler::read(std::span<const RankProcess> ranks) {
  Reading now;
  now.time_ns = clock_.monotonic().count();
  now.cpu = host::read_cpu_times(root_);
  now.network = host::read_network(root_);
  now.disks = host::read_disks(root_);
  // Finding the interfaces that count reads many more files. So this happens only when interfaces came or went, and now
  // and then, because an interface becomes the port of a bridge after it has come.
  if (!same_names(now.network, before_.network) || ++since_looked_ >= kLookEvery) {
    interfaces_ = host::outside_interfaces(root_);
    since_looked_ = 0;
  }
  if (!same_names(now.disks, before_.disks)) disks_ = host::whole_disks(root_);
  find_cgroups(ranks);
  for (CpuQuota& quota : cpu_quotas(cgroups_)) now.quotas.try_emplace(quota.group, std::move(quota));
  for (const RankProcess& rank : ranks) {
    if (const auto usage = host::read_process(rank.pid, root_)) now.processes[rank.pid] = *usage;
    for (const pid_t child : now.children[rank.pid] = host::child_processes(rank.pid, root_)) {
      if (const auto usage = host::read_process(child, root_)) now.processes[child] = *usage;
    }
    if (const auto wait = host::read_core_wait(rank.pid, root_)) now.core_waits[rank.pid] = *wait;
  }
  return now;
}

void SystemSampler::find_cgroups(std::span<const RankProcess> ranks) {
  for (const RankProcess& rank : ranks) {
    if (!known_ranks_.insert(rank.pid).second) continue;
    const Cgroups own = cgroups_of(rank.pid, root_);
    add_new(own.cpu, cgroups_.cpu);
    add_new(own.memory, cgroups_.memory);
  }
}

void SystemSampler::add_cgroups(SystemSample& sample, const Reading& now, double seconds) {
  const std::vector<MemoryLimit> limits = memory_limits(cgroups_);
  if (const MemoryLimit* const limit = tightest(limits)) {
    sample.cgroup_free_memory = static_cast<double>(limit->free());
    sample.cgroup_memory_limit = static_cast<double>(limit->bytes);
  }
  for (const auto& [group, after] : now.quotas) {
    const auto before = before_.quotas.find(group);
    if (before == before_.quotas.end()) continue;
    const double periods = growth(before->second.periods, after.periods);
    const double throttled = periods > 0 ? 100 * growth(before->second.throttled, after.throttled) / periods : 0;
    if (sample.cpu_throttled_periods && throttled <= *sample.cpu_throttled_periods) continue;
    const auto time = std::max(Nanoseconds(0), after.throttled_time - before->second.throttled_time);
    sample.cpu_throttled_periods = std::min(100.0, throttled);
    sample.cpu_throttled_time = 100 * to_seconds(time) / seconds;
  }
}

void SystemSampler::add_network(SystemSample& sample, const Reading& now, double seconds) {
  double sent = 0;
  double received = 0;
  const auto add = [&](const host::NetworkCounters& before, const host::NetworkCounters& after) {
    sent += growth(before.sent, after.sent);
    received += growth(before.received, after.received);
  };
  if (!each_in_both(interfaces_, before_.network, now.network, add)) return;
  sample.net_throughput_sent = sent / seconds;
  sample.net_throughput_recv = received / seconds;
}

void SystemSampler::add_disks(SystemSample& sample, const Reading& now, double seconds) {
  double requests = 0;
  double read = 0;
  double written = 0;
  const auto add = [&](const host::DiskCounters& before, const host::DiskCounters& after) {
    requests += growth(before.reads, after.reads) + growth(before.writes, after.writes);
    read += growth(before.read_bytes, after.read_bytes);
    written += growth(before.written_bytes, after.written_bytes);
  };
  if (!each_in_both(disks_, before_.disks, now.disks, add)) return;
  sample.disk_iops = requests / seconds;
  sample.disk_throughput_read = read / seconds;
  sample.disk_throughput_write = written / seconds;
}

SystemSample SystemSampler::sample(std::span<const RankProcess> ranks) {
  Reading now = read(ranks);
  SystemSample sample;
  sample.time_ns = now.time_ns;
  sample.interval_ns = std::max<std::int64_t>(1, now.time_ns - before_.time_ns);
  const double seconds = static_cast<double>(sample.interval_ns) / 1e9;
  add_network(sample, now, seconds);
  add_disks(sample, now, seconds);
  add_cgroups(sample, now, seconds);
  if (const auto memory = host::read_memory(root_)) sample.free_memory = static_cast<double>(memory->available);
  if (now.cpu && before_.cpu) {
    sample.cpu_util_simple = 100 * host::busy_share(before_.cpu->all, now.cpu->all);
    sample.io_wait = 100 * host::io_wait_share(before_.cpu->all, now.cpu->all);
    const std::size_t cores = std::min(before_.cpu->cores.size(), now.cpu->cores.size());
    for (std::size_t i = 0; i < cores; ++i) {
      sample.cpu_util_per_core.push_back(100 * host::busy_share(before_.cpu->cores[i], now.cpu->cores[i]));
    }
  }
  for (const RankProcess& rank : ranks) {
    const auto after = now.processes.find(rank.pid);
    if (after == now.processes.end()) continue;
    ProcessRecord process{rank.rank, rank.pid, static_cast<double>(after->second.resident_bytes)};
    // Returns 0 for a process without an earlier reading.
    const auto cpu_percent = [&](pid_t pid) {
      const auto earlier = before_.processes.find(pid);
      const auto later = now.processes.find(pid);
      if (earlier == before_.processes.end() || later == now.processes.end()) return 0.0;
      return std::max(0.0, 100 * to_seconds(later->second.cpu - earlier->second.cpu) / seconds);
    };
    process.cpu_percent = cpu_percent(rank.pid);
    for (const pid_t child : now.children[rank.pid]) {
      process.children_cpu_percent = process.children_cpu_percent.value_or(0) + cpu_percent(child);
    }
    const auto wait_before = before_.core_waits.find(rank.pid);
    const auto wait_after = now.core_waits.find(rank.pid);
    if (wait_before != before_.core_waits.end() && wait_after != now.core_waits.end()) {
      const auto waited = std::max(Nanoseconds(0), wait_after->second - wait_before->second);
      process.cpu_wait_percent = 100 * to_seconds(waited) / seconds;
    }
    sample.processes.push_back(process);
  }
  before_ = std::move(now);
  return sample;
}

Json machine_facts(const std::filesystem::path& root) {
  Json facts = Json::object();
  const std::vector<int> cpus = host::allowed_cpus();
  facts["cpus"] = cpus;
  facts["physical_cores"] = host::physical_cores();
  // This is a limit, and not the CPUs to which this process happens to be bound.
  if (const double limit = host::cpu_limit(root); limit < static_cast<double>(cpus.size())) facts["cpu_limit"] = limit;
  const Cgroups groups = cgroups_of(0, root);
  const std::vector<CpuQuota> quotas = cpu_quotas(groups);
  const auto least = std::ranges::min_element(quotas, {}, &CpuQuota::cpus);
  if (least != quotas.end()) {
    facts["cpu_quota"] = {{"cpus", least->cpus}, {"group", least->group}, {"period_ns", least->period.count()}};
  }
  for (const MemoryLimit& limit : memory_limits(groups)) {
    facts["memory_limits"].push_back({{"bytes", limit.bytes}, {"group", limit.group}, {"file", limit.file}});
  }
  if (const auto instructions = host::cpu_instructions(root)) {
    facts["vector_bits"] = instructions->vector_bits;
    facts["bf16"] = instructions->bf16;
  }
  if (const auto memory = host::read_memory(root)) facts["total_memory"] = memory->total;
  Json disks = Json::array();
  for (const std::string& name : host::whole_disks(root)) {
    Json disk = {{"name", name}};
    if (const std::string kind = host::disk_kind(name, root); !kind.empty()) disk["kind"] = kind;
    disks.push_back(std::move(disk));
  }
  facts["disks"] = std::move(disks);
  Json interfaces = Json::array();
  for (const std::string& name : host::outside_interfaces(root)) {
    Json interface = {{"name", name}};
    if (const auto speed = host::link_speed(name, root)) interface["bits_per_s"] = *speed;
    interfaces.push_back(std::move(interface));
  }
  facts["interfaces"] = std::move(interfaces);
  return facts;
}

}  // namespace dtrain::profile
