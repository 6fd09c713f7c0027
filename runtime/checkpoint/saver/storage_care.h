// The saver's operations on whole folders of the storage, whose lock it holds. SystemError.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/checkpoint/manifest.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

// Deletes the remains of dead savers and of interrupted deletions, and restores a replaced checkpoint whose replacement
// is missing.
void clean_leftovers(const std::filesystem::path& storage);

// Makes an empty .partial-step-N.
OpenFolder make_partial(const std::filesystem::path& storage, std::int64_t step);

// Gives the partial folder, whose contents are durable, its final name, durably. An existing checkpoint of that name
// stays if it is intact and has the same content; otherwise it is replaced. At each moment one of the two exists.
std::filesystem::path publish(const std::filesystem::path& storage, const Manifest& manifest);

}  // namespace dtrain::checkpoints
