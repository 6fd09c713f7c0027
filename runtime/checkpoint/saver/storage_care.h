// What the saver does with whole folders of the storage, which it holds the lock of. SystemError.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/checkpoint/manifest.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

// Deletes what dead savers and deletions that were cut short have left, and puts a replaced checkpoint back whose
// replacement is not there.
void clean_leftovers(const std::filesystem::path& storage);

// An empty .partial-step-N.
OpenFolder make_partial(const std::filesystem::path& storage, std::int64_t step);

// Gives the partial folder, whose contents are durable, its name, durably. Where a checkpoint of that name is there
// already, one that is whole and has the same content stays; any other is replaced. At each moment one of the two is
// there.
std::filesystem::path publish(const std::filesystem::path& storage, const Manifest& manifest);

}  // namespace dtrain::checkpoints
