#include "dtrain/host/readings.h"

#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {
namespace {

constexpr std::size_t kMaxCpus = 1u << 16;  // a larger number in the file is no CPU number

std::uint64_t since(std::uint64_t before, std::uint64_t after) {
  return after > before ? after - before : 0;
}

double share(std::uint64_t part, const CpuTimes& before, const CpuTimes& after) {
  const std::uint64_t whole =
      since(before.busy, after.busy) + since(before.idle, after.idle) + since(before.io_wait, after.io_wait);
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

constexpr std::uint64_t kSectorBytes = 512;  // the unit of /proc/diskstats, for every disk

bool is_disk(const std::filesystem::path& root, const std::string& name) {
  for (const std::string_view other : {"loop", "ram", "zram", "sr", "fd", "dm-", "md"}) {
    if (name.starts_with(other)) return false;
  }
  std::error_code error;
  const std::filesystem::path entry = root / "sys/block" / name;  // partitions have none here
  if (!std::filesystem::exists(entry, error)) return false;
  const bool built_from_others =
      std::filesystem::is_directory(entry / "slaves", error) && !std::filesystem::is_empty(entry / "slaves", error);
  return !built_from_others;
}

}  // namespace

std::optional<CpuReading> read_cpu_times(const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc/stat");
  if (!text) return std::nullopt;
  CpuReading reading;
  bool found = false;
  for (Fields lines(*text, '\n'); const auto line = lines.next();) {
    if (!line->starts_with("cpu")) break;  // they come first
    Fields fields(*line, ' ');
    const std::string_view name = fields.next().value_or("");
    // user nice system idle iowait irq softirq steal; guest times are part of user already
    std::uint64_t value[8] = {};
    for (std::uint64_t& v : value) v = fields.number();
    const CpuTimes times{value[0] + value[1] + value[2] + value[5] + value[6] + value[7], value[3], value[4]};
    if (name == "cpu") {
      reading.all = times;
      found = true;
      continue;
    }
    const std::uint64_t number = to_number<std::uint64_t>(name.substr(3)).value_or(0);
    if (number >= kMaxCpus) continue;
    if (reading.cores.size() <= number) reading.cores.resize(number + 1);
    reading.cores[number] = times;
  }
  if (!found) return std::nullopt;
  return reading;
}

double busy_share(const CpuTimes& before, const CpuTimes& after) {
  return share(since(before.busy, after.busy), before, after);
}

double io_wait_share(const CpuTimes& before, const CpuTimes& after) {
  return share(since(before.io_wait, after.io_wait), before, after);
}

std::map<std::string, DiskCounters> read_disks(const std::filesystem::path& root) {
  std::map<std::string, DiskCounters> result;
  const std::string text = read_proc_file(root / "proc/diskstats").value_or("");
  for (Fields lines(text, '\n'); const auto line = lines.next();) {
    Fields fields(*line, ' ');
    fields.skip(2);  // device numbers
    const auto name = fields.next();
    if (!name) continue;
    DiskCounters counters;
    counters.reads = fields.number();
    fields.skip(1);  // merged
    counters.read_bytes = fields.number() * kSectorBytes;
    fields.skip(1);  // milliseconds
    counters.writes = fields.number();
    fields.skip(1);
    counters.written_bytes = fields.number() * kSectorBytes;
    result.emplace(*name, counters);
  }
  return result;
}

std::string disk_kind(const std::string& name, const std::filesystem::path& root) {
  for (const std::string_view made_up : {"vd", "xvd", "nbd", "rbd"}) {
    if (name.starts_with(made_up)) return {};
  }
  const std::string vendor = read_proc_file(root / "sys/block" / name / "device/vendor").value_or("");
  for (const std::string_view made_up : {"QEMU", "VMware", "Msft", "Google", "VBOX"}) {
    if (vendor.starts_with(made_up)) return {};
  }
  if (name.starts_with("nvme")) return "nvme";
  const std::string rotational = read_proc_file(root / "sys/block" / name / "queue/rotational").value_or("");
  return rotational.starts_with('1') ? "rotating" : rotational.starts_with('0') ? "ssd" : "";
}

std::set<std::string> whole_disks(const std::filesystem::path& root) {
  std::set<std::string> result;
  for (const auto& [name, counters] : read_disks(root)) {
    if (is_disk(root, name)) result.insert(name);
  }
  return result;
}

std::optional<MemoryReading> read_memory(const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "proc/meminfo");
  if (!text) return std::nullopt;
  MemoryReading reading;
  for (Fields lines(*text, '\n'); const auto line = lines.next();) {
    Fields fields(*line, ' ');  // "MemAvailable:   12345 kB"
    const std::string_view name = fields.next().value_or("");
    if (name == "MemTotal:") reading.total = fields.number() * 1024;
    if (name == "MemAvailable:") reading.available = fields.number() * 1024;
  }
  if (reading.total == 0) return std::nullopt;
  return reading;
}

}  // namespace dtrain::host
