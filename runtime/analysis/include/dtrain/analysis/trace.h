// The traces of a run's ranks as files for other programs: one file for Perfetto with every rank on one time line, and
// one file for each rank for HolisticTraceAnalysis. Plain functions, any thread. Errors are SystemError or DataError
// naming the file. The result has a note for each missing or omitted part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct MergeOptions {
  // The largest uncompressed JSON, in bytes, that a browser opens. Beyond it the operators of further ranks are left
  // out; steps, phases and collectives are never left out.
  std::uintmax_t most_bytes = 1u << 30;
};

struct MergedTrace {
  std::filesystem::path path;
  std::uintmax_t bytes = 0;
  std::vector<int> ranks;
  bool from_dumps = false;       // no trace was taken: only steps and collectives, from the dumps
  std::int64_t collectives = 0;  // slices of all ranks
  std::int64_t arrows = 0;       // from the rank that came last to each that waited for it
  std::int64_t error_ns = 0;     // of the true time between slices of two ranks
  bool error_known = true;       // false: the clocks of several hosts were not compared
  std::vector<std::string> notes;
};

// Writes the trace to `path`, compressed with gzip, as Perfetto opens it.
MergedTrace merge_traces(const RunProfile& profile, const std::filesystem::path& path,
                         const MergeOptions& options = {});

struct HtaFiles {
  std::vector<std::filesystem::path> files;  // by rank
  std::vector<std::string> notes;
};

// Writes the latest trace of each rank in the form that HolisticTraceAnalysis 0.5 reads. It reads only kernels, so if
// nothing ran on a GPU, phases and collectives take their place (docs/traces.md lists which).
HtaFiles write_hta_files(const RunProfile& profile, const std::filesystem::path& folder);

Json to_json(const MergedTrace& merged);

}  // namespace dtrain::analysis
