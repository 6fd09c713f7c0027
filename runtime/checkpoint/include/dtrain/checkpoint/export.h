// The weights of a checkpoint as a file for other programs. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>

namespace dtrain::checkpoints {

// Writes model.safetensors of a checkpoint with each tensor under all of its names. A checkpoint has a tied tensor only
// once; its metadata "tied.<other name>" gives the name of that tensor. The folder of `output` must exist; `output` is
// replaced atomically. Does not verify the checkpoint. Returns the size. DataError, SystemError.
std::uint64_t export_safetensors(const std::filesystem::path& checkpoint, const std::filesystem::path& output);

}  // namespace dtrain::checkpoints
