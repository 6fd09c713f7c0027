#include "dtrain/host/disks.h"

#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {
namespace {

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

}  // namespace dtrain::host
