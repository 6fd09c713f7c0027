// A run of very many steps of a small model, and what is on disk afterwards.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dtrain/base/json.h"

namespace dtrain::bench {

// Error where a step is missing in the dumps or in there twice.
Json long_run(const std::filesystem::path& scratch, std::int64_t steps);

}  // namespace dtrain::bench
