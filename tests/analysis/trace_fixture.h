// Trace files of ranks, written as a rank writes them, from a profiler's file that was made by hand.
#pragma once

#include <string>

#include "dtrain/base/file.h"
#include "dtrain/profile/trace_file.h"
#include "run_folder.h"

namespace dtrain::analysis {

inline constexpr std::int64_t kWallStart = 1'700'000'000'000'000'000;  // of the profilers' clocks

inline profile::CollectiveRecord all_reduce(std::uint64_t sequence, std::int64_t start_ns, std::int64_t end_ns) {
  profile::CollectiveRecord record;
  record.sequence = sequence;
  record.bucket = 0;
  std::string("all_reduce").copy(record.operation, sizeof record.operation - 1);
  record.bytes = 1'000;
  record.world_size = 2;
  record.enqueued_ns = record.started_ns = start_ns;
  record.ended_ns = end_ns;
  return record;
}

// `"name", start and duration in microseconds` of an operator on the training thread.
inline std::string op(const std::string& name, double start_us, double duration_us,
                      const std::string& category = "cpu_op") {
  return fmt::format(
      R"({{"ph":"X","cat":"{}","name":"{}","pid":42,"tid":42,"ts":{},"dur":{},"args":{{"a":[1,"]}}"]}}}})", category,
      name, start_us, duration_us);
}

// A kernel of the GPU, and the call that launched it.
inline std::string kernel(double start_us, double duration_us, int correlation) {
  return fmt::format(
      R"({{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":{},"dur":{},"args":{{"correlation": {}}}}})",
      start_us, duration_us, correlation);
}
inline std::string launch_of(int correlation, double start_us, double duration_us) {
  return fmt::format(R"({{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":42,"tid":42,"ts":{},"dur":{},)"
                     R"("args":{{"External id": 5,"correlation": {}}}}})",
                     start_us, duration_us, correlation);
}

// The profiler's time 0 is `monotonic_ns` of the host's clock.
inline void write_trace(const RunFolder& folder, int rank, std::int64_t monotonic_ns, const profile::TraceLog& log,
                        const std::vector<std::string>& events, const std::string& cut = "") {
  std::string raw = fmt::format(
      "{{\n\"schemaVersion\":1,\"deviceProperties\":[],\n\"baseTimeNanoseconds\":{},\n"
      "\"traceEvents\":[\n",
      kWallStart);
  for (const std::string& event : events) raw += event + ",\n";
  raw += R"({"ph":"X","cat":"Trace","name":"span","pid":"Spans","tid":"t","ts":0,"dur":5},)"
         "\n"
         R"({"ph":"M","name":"process_name","pid":42,"tid":0,"ts":0,"args":{"name":"x"}}],"traceName":"x"})"
         "\n";
  write_file_atomic(folder.path() / "raw", raw);
  profile::TraceFacts facts;
  facts.rank = rank;
  facts.world_size = 2;
  facts.pid = 42;
  facts.host = "node" + std::to_string(rank);
  facts.window = {5, 6};
  facts.last_batch = 6;
  facts.cut = cut;
  facts.clock = {{kWallStart, monotonic_ns, 1'000}};
  profile::write_trace_file(folder.path() / "raw", log, facts,
                            folder.path() / "profile" / profile::trace_file_name(rank, 1));
}

}  // namespace dtrain::analysis
