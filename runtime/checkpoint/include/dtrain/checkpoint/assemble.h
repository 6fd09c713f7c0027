// How a whole state is made of what ranks of several hosts have saved (host_states.h): the shared files, of which the
// model's buffers and state.json are rank 0's, and a file of what is each rank's own. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

// Names of tensors in a rank's file: its numbers and texts, as JSON, and the beginning of those of the model's buffers.
inline constexpr std::string_view kValuesName = "values";
inline constexpr std::string_view kBuffersOfRank = "step/model/buffers/";

// Where the ranks have divided the optimizer's state, a part has no values in its optimizer.safetensors. Those of a
// rank are in a file beside its own: "rank-0000.moments". Its tensors are stretches of the optimizer's.
inline constexpr std::string_view kMomentsSuffix = ".moments";
std::string moments_file(int rank);
std::string moments_name(const std::string& tensor, std::int64_t first_element);  // "exp_avg/layer.weight@120"

// `folder` has the shared files and the files of all ranks: makes it a whole state, whose manifest is written last.
// What is done again after an interruption gives the same bytes. DataError, SystemError.
void assemble(const std::filesystem::path& folder, const About& about);

}  // namespace dtrain::checkpoints
