// The weights of a checkpoint as a file for other programs. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>

namespace dtrain::checkpoints {

// Writes model.safetensors of a checkpoint with each tensor under all of its names: inside a checkpoint a tied tensor
// is there once, and the metadata "tied.<other name>" says where. `output`, in a folder that exists, is the old file or
// the whole new one. Does not verify the checkpoint. Returns the size. DataError, SystemError.
std::uint64_t export_safetensors(const std::filesystem::path& checkpoint, const std::filesystem::path& output);

}  // namespace dtrain::checkpoints
