#include "dtrain/analysis/operators.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "dtrain/base/error.h"
#include "read/json_fields.h"
#include "trace/trace_reader.h"

namespace dtrain::analysis {
namespace {

struct Span {
  double start_us, end_us;
  std::size_t name;  // kCommunication, or an index into names
};
constexpr std::size_t kCommunication = static_cast<std::size_t>(-1);

struct OperatorTotals {
  std::int64_t calls = 0;
  double self_us = 0, total_us = 0;
};

class Device {
 public:
  std::size_t index_of(std::string_view name) {
    const auto [found, added] = indices_.try_emplace(std::string(name), totals_.size());
    if (added) totals_.emplace_back();
    return found->second;
  }
  OperatorTotals& at(std::size_t index) { return totals_[index]; }
  DeviceOperators result() const;

 private:
  std::unordered_map<std::string, std::size_t> indices_;
  std::vector<OperatorTotals> totals_;
};

DeviceOperators Device::result() const {
  DeviceOperators device;
  for (const auto& [name, index] : indices_) {
    const OperatorTotals& totals = totals_[index];
    device.rows.push_back({name, kind_of_operator(name), totals.calls, totals.self_us / 1e6, totals.total_us / 1e6, 0});
    device.seconds += totals.self_us / 1e6;
  }
  std::sort(device.rows.begin(), device.rows.end(), [](const OperatorRow& a, const OperatorRow& b) {
    return a.self_s != b.self_s ? a.self_s > b.self_s : a.name < b.name;
  });
  for (const OperatorKind kind : kOperatorKinds) {
    OperatorKindRow row{kind};
    for (OperatorRow& op : device.rows) {
      op.share = device.seconds > 0 ? op.self_s / device.seconds : 0;
      if (op.kind != kind) continue;
      row.calls += op.calls;
      row.seconds += op.self_s;
    }
    row.share = device.seconds > 0 ? row.seconds / device.seconds : 0;
    device.kinds.push_back(row);
  }
  return device;
}

// Charges each span of a thread with its time without the spans inside it.
void charge(std::vector<Span>& spans, Device& device) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.start_us != b.start_us ? a.start_us < b.start_us : a.end_us > b.end_us;
  });
  struct Open {
    Span span;
    double self_us;
  };
  std::vector<Open> stack;
  const auto close = [&] {
    const Open done = stack.back();
    stack.pop_back();
    if (done.span.name == kCommunication) return;
    OperatorTotals& totals = device.at(done.span.name);
    ++totals.calls;
    totals.self_us += std::max(0.0, done.self_us);
    totals.total_us += done.span.end_us - done.span.start_us;
  };
  for (Span span : spans) {
    while (!stack.empty() && stack.back().span.end_us <= span.start_us) close();
    if (!stack.empty()) {
      span.end_us = std::min(span.end_us, stack.back().span.end_us);  // clocks differ by a microsecond
      stack.back().self_us -= span.end_us - span.start_us;
    }
    stack.push_back({span, span.end_us - span.start_us});
  }
  while (!stack.empty()) close();
}

void add_file(const std::filesystem::path& path, Operators& result, Device& cpu, Device& gpu, std::set<int>& ranks) {
  TraceReader reader(path);
  std::map<std::string, std::vector<Span>> threads;
  std::vector<Span> communication;
  std::string training_thread;
  reader.each([&](const RawEvent& event) {
    if (event.ph != "\"X\"") return;
    const std::string_view category = unquoted(event.category);
    const double start = event.ts_us();
    const double end = start + event.dur_us();
    if (category == "cpu_op") {
      threads[std::string(event.tid)].push_back({start, end, cpu.index_of(unquoted(event.name))});
    } else if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
      OperatorTotals& totals = gpu.at(gpu.index_of(unquoted(event.name)));
      ++totals.calls;
      totals.self_us += end - start;
      totals.total_us += end - start;
    } else if (category == "phase" && unquoted(event.name) == "allreduce_wait") {
      communication.push_back({start, end, kCommunication});
    } else if (category == "user_annotation" && unquoted(event.name).starts_with("ProfilerStep#")) {
      training_thread = event.tid;
    }
  });
  if (!training_thread.empty()) {
    auto& spans = threads[training_thread];
    spans.insert(spans.end(), communication.begin(), communication.end());
  }
  for (auto& [thread, spans] : threads) charge(spans, cpu);
  const TraceHead& head = reader.head();
  ranks.insert(head.rank);
  add_to(result.batches, std::max<std::int64_t>(0, head.batches()));
  if (!head.cut.empty()) {
    result.notes.push_back(path.filename().string() + " ends after batch " + std::to_string(head.last_batch) + ": " +
                           head.cut);
  }
  if (!head.missing.empty()) result.notes.push_back(path.filename().string() + " lacks " + head.missing);
}

Json device_json(const DeviceOperators& device) {
  Json rows = Json::array();
  for (const OperatorRow& row : device.rows) {
    rows.push_back({{"name", row.name},
                    {"class", name_of(row.kind)},
                    {"calls", row.calls},
                    {"self_s", row.self_s},
                    {"total_s", row.total_s},
                    {"share", row.share}});
  }
  Json kinds = Json::array();
  for (const OperatorKindRow& row : device.kinds) {
    kinds.push_back(
        {{"class", name_of(row.kind)}, {"calls", row.calls}, {"seconds", row.seconds}, {"share", row.share}});
  }
  return {{"seconds", device.seconds}, {"operators", rows}, {"classes", kinds}};
}

}  // namespace

Operators operators_of_files(const std::vector<std::filesystem::path>& files) {
  Operators result;
  Device cpu, gpu;
  std::set<int> ranks;
  for (const auto& path : files) {
    try {
      add_file(path, result, cpu, gpu, ranks);
    } catch (const Error& error) {
      result.notes.emplace_back(error.what());
    }
  }
  result.cpu = cpu.result();
  result.gpu = gpu.result();
  result.ranks.assign(ranks.begin(), ranks.end());
  return result;
}

Operators operators_of_run(const std::filesystem::path& run_folder) {
  return operators_of_files(trace_files(run_folder));
}

Json to_json(const Operators& operators) {
  return {{"cpu", device_json(operators.cpu)},
          {"gpu", device_json(operators.gpu)},
          {"ranks", operators.ranks},
          {"traced_batches", operators.batches},
          {"notes", operators.notes}};
}

}  // namespace dtrain::analysis
