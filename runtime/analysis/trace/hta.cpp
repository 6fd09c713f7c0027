// Writes traces as HolisticTraceAnalysis reads them. It reads kernels: events of category "kernel" on a stream, each
// tied by a number to the call that launched it. Kernels that are named like NCCL's are communication. A rank without a
// GPU has no kernels, so its phases and collectives replace them; the computing stream is idle while the rank loads or
// waits.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/export.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/profile/gzip_file.h"
#include "read/json_fields.h"
#include "trace/trace_reader.h"

namespace dtrain::analysis {
namespace {

constexpr int kComputeStream = 7;
constexpr int kCopyStream = 8;
constexpr int kFirstCommunicationStream = 20;

struct StandIn {
  std::string_view phase, kernel;
  int stream;
};
// Phases that are not listed leave the streams idle: loading, waiting, checkpoints, the rest.
constexpr std::array kStandIns = {StandIn{"train_batch", "dtrain_train_batch", kComputeStream},
                                  StandIn{"train_batch.forward", "dtrain_forward", kComputeStream},
                                  StandIn{"train_batch.backward", "dtrain_backward", kComputeStream},
                                  StandIn{"graph", "dtrain_graph", kComputeStream},
                                  StandIn{"optimizer_step", "dtrain_optimizer_step", kComputeStream},
                                  StandIn{"step_lr_schedulers", "dtrain_step_lr_schedulers", kComputeStream},
                                  StandIn{"validation", "dtrain_validation", kComputeStream},
                                  StandIn{"to_device", "Memcpy HtoD (to_device)", kCopyStream},
                                  StandIn{"from_device", "Memcpy DtoH (from_device)", kCopyStream}};

std::string nccl_name(const std::string& operation) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kNames{
      {{"all_reduce", "AllReduce_Sum"},
       {"reduce_scatter", "ReduceScatter_Sum"},
       {"all_gather", "AllGather"},
       {"broadcast", "Broadcast"}}};
  for (const auto& [name, nccl] : kNames) {
    if (operation == name) return "ncclDevKernel_" + std::string(nccl);
  }
  return "ncclDevKernel_" + operation;
}

class HtaWriter {
 public:
  HtaWriter(const RunProfile& profile, const TraceHead& head, std::int64_t origin_ns, const std::filesystem::path& path)
      : profile_(profile), head_(head), origin_ns_(origin_ns), out_(path) {}

  void begin() {
    // HolisticTraceAnalysis finds the rank by this line, and requires a space before the number.
    out_.write(
        fmt::format("{{\n\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}}},\n"
                    "\"schemaVersion\": 1,\n\"traceEvents\":[\n",
                    head_.rank, head_.world_size));
  }
  void pass_on(const RawEvent& event) {
    const auto pid = to_number<std::int64_t>(event.pid);
    if (!pid || event.tid.empty()) return;
    const double ts_us = event.ts.empty() ? 0 : to_us(event.ts_us());
    append_event(line_, event, *pid, ts_us, to_number<std::int64_t>(event.id).value_or(0));
    flush();
  }
  // Times are whole microseconds: after the rounding of HolisticTraceAnalysis, a shorter kernel would end before it
  // began.
  void kernel(const std::string& name, int stream, double start_us, double duration_us) {
    const auto start = std::llround(start_us);
    const auto end = std::llround(start_us + duration_us);
    if (end <= start) return;
    ++correlation_;
    fmt::format_to(std::back_inserter(line_),
                   R"({{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{},"tid":{},"ts":{},"dur":1,)"
                   R"("args":{{"correlation":{},"cbid":211}}}},)"
                   "\n"
                   R"({{"ph":"X","cat":"kernel","name":"{}","pid":0,"tid":{},"ts":{},"dur":{},)"
                   R"("args":{{"device":0,"stream":{},"correlation":{}}}}},)"
                   "\n",
                   head_.pid, head_.pid, start, correlation_, name, stream, start, end - start, stream, correlation_);
    flush();
  }
  double to_us(double trace_us) const {
    const double monotonic = head_.monotonic_ns(trace_us);
    const auto whole = static_cast<std::int64_t>(monotonic);
    return (static_cast<double>(profile_.to_common_ns(head_.rank, whole) - origin_ns_) +
            (monotonic - static_cast<double>(whole))) /
           1e3;
  }
  void end() {
    out_.write(fmt::format("{{\"ph\":\"i\",\"s\":\"g\",\"name\":\"end\",\"pid\":{},\"tid\":{},\"ts\":0}}\n]\n}}\n",
                           head_.pid, head_.pid));
    out_.finish();
  }

 private:
  void flush() {
    out_.write({line_.data(), line_.size()});
    line_.clear();
  }

  const RunProfile& profile_;
  const TraceHead& head_;
  std::int64_t origin_ns_;
  profile::GzipWriter out_;
  fmt::memory_buffer line_;
  std::int64_t correlation_ = 1'000'000;
};

// Returns true if the rank ran kernels of its own.
bool write_rank(TraceReader& reader, HtaWriter& writer) {
  bool has_kernels = false;
  reader.each([&](const RawEvent& event) { has_kernels |= unquoted(event.category) == "kernel"; });
  writer.begin();
  std::map<std::int64_t, int> streams;  // of the tracks of collectives
  reader.each([&](const RawEvent& event) {
    const std::string_view category = unquoted(event.category);
    if (category == "step") return;
    if (category != "phase" && category != "collective") return writer.pass_on(event);
    if (has_kernels) return;
    const double start_us = writer.to_us(event.ts_us());
    if (category == "phase") {
      const auto found = std::find_if(kStandIns.begin(), kStandIns.end(),
                                      [&](const StandIn& s) { return s.phase == unquoted(event.name); });
      if (found != kStandIns.end()) writer.kernel(std::string(found->kernel), found->stream, start_us, event.dur_us());
      return;
    }
    const Json args = parse_if_valid(event.args).value_or(Json());
    const auto track = to_number<std::int64_t>(event.tid);
    if (!args.is_object() || !track) return;
    const int stream =
        streams.try_emplace(*track, kFirstCommunicationStream + static_cast<int>(streams.size())).first->second;
    writer.kernel(nccl_name(text(args, "operation")), stream, start_us, event.dur_us());
  });
  writer.end();
  return has_kernels;
}

}  // namespace

HtaFiles write_hta_files(const RunProfile& profile, const std::filesystem::path& folder) {
  std::map<int, std::filesystem::path> latest;
  std::map<int, TraceHead> heads;
  HtaFiles result;
  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();
  for (const auto& path : trace_files(profile.folder)) {
    try {
      TraceHead head = read_trace_head(path);
      latest[head.rank] = path;
      heads[head.rank] = std::move(head);
    } catch (const Error& error) {
      result.notes.emplace_back(error.what());
    }
  }
  if (latest.empty()) {
    throw DataError("the run " + profile.folder.string() + " has no trace that could be read",
                    "ask for one: profiling.trace in the experiment, or `dtrain trace RUN --now` while it runs");
  }
  for (const auto& [rank, head] : heads) {
    origin_ns = std::min(origin_ns, profile.to_common_ns(rank, head.clock.front().monotonic_ns));
    if (head.first_batch != heads.begin()->second.first_batch) {
      result.notes.push_back("rank " + std::to_string(rank) + " has another window than rank " +
                             std::to_string(heads.begin()->first));
    }
  }
  make_folder(folder);
  bool stand_ins = false;
  for (const auto& [rank, path] : latest) {
    const auto target = folder / fmt::format("rank-{:04}.json.gz", rank);
    TraceReader reader(path);
    HtaWriter writer(profile, heads[rank], origin_ns, target);
    stand_ins |= !write_rank(reader, writer);
    result.files.push_back(target);
  }
  if (stand_ins) result.notes.emplace_back("phases and collectives stand in for kernels: nothing ran on a GPU");
  return result;
}

}  // namespace dtrain::analysis
