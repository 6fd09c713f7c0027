#include "dtrain/host/cpu_times.h"

#include "dtrain/host/proc_file.h"
#include "fields.h"

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
    const std::uint64_t number = to_number(name.substr(3));
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

}  // namespace dtrain::host
