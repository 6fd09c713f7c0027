// The last collectives of the ranks in the form that `python -m torch.distributed.flight_recorder.fr_trace` reads, for
// ranks that hang: those that ended, from the monitor's records, and the one in which a rank waits.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/base/pulse.h"

namespace dtrain::launcher {

// Returns the pickle, protocol 2, of a value of JSON: objects are dicts, arrays are lists.
std::string pickle_of(const Json& value);

// Returns the record of one rank. `records`: the rank's file in profile/, of which the end is read. `page`: null: it
// has shared none.
Json flight_record(const std::filesystem::path& records, int world_size, const PulsePage* page);

}  // namespace dtrain::launcher
