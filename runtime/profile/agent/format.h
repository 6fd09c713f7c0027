// The records of a rank and of an agent as lines of JSON, as docs/profile-format.md describes them. Each function
// appends or returns one line with its newline.
#pragma once

#include <string>

#include "agent/field_writer.h"
#include "agent/system_sampler.h"
#include "dtrain/base/json.h"
#include "dtrain/host/gpus.h"
#include "ring.h"

namespace dtrain::profile {

inline constexpr int kDumpSchema = 1;

// Appends a record; nothing for an unknown kind.
void append_record(LineBuffer& out, const Record& record);
// Return a name from shared memory, without characters that break a line.
std::string operation_of(const CollectiveRecord& record);
std::string path_of(const ScopeRecord& scope);
void append_system(LineBuffer& out, const SystemSample& sample);
std::string gpu_line(const host::GpuInfo& gpu);

// Returns the first line. `fields` come first; the fields of `extra` that are not among them follow.
std::string header_line(const Json& fields, const Json& extra, const Clock& clock);

}  // namespace dtrain::profile
