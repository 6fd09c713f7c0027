// Records as lines of JSON, as docs/profile-format.md describes them. Formatted by hand: the agent shares the cores
// with the training. Each appends one line with its newline.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include <spdlog/fmt/compile.h>
#include <spdlog/fmt/fmt.h>

#include "agent/system_sampler.h"
#include "dtrain/base/json.h"
#include "dtrain/host/processes.h"
#include "ring.h"

namespace dtrain::profile {

inline constexpr int kDumpSchema = 1;

// The text of a record while it is put together.
using LineBuffer = fmt::memory_buffer;
// Appends; the arguments are those of fmt::format_to.
template <typename... Args>
void put(LineBuffer& out, Args&&... args) {
  fmt::format_to(std::back_inserter(out), std::forward<Args>(args)...);
}

// Of an unknown kind: nothing.
void append_record(LineBuffer& out, const Record& record);
// The time of a phase as dumps give it: that of train_batch holds its parts.
std::int64_t time_in(const PhaseTimes& times, Phase phase);
// A name that came through shared memory: nothing in it can break a line.
std::string operation_of(const CollectiveRecord& record);
std::string path_of(const ScopePayload& scope);
// The time of a scope: the sum of its times in the phases.
std::int64_t wall_of(const ScopePayload& scope);
// ,"phases":{…} with the phases in which the scope was.
void append_scope_phases(LineBuffer& out, const PhaseTimes& phases);
void append_system(LineBuffer& out, const SystemSample& sample);
// `free_heap`: bytes; -1: not known.
std::string memory_line(std::int64_t time_ns, std::int64_t batch, const host::ProcessMemory& memory,
                        std::int64_t free_heap);
std::string gpu_line(const host::GpuInfo& gpu);

// The first line. `fields` come first; those of `extra` that are not among them follow.
std::string header_line(const Json& fields, const Json& extra, const Clock& clock);

}  // namespace dtrain::profile
