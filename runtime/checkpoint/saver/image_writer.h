// Writes files whose bytes lie in a SnapshotMemory.
#pragma once

#include <functional>
#include <vector>

#include "dtrain/checkpoint/manifest.h"
#include "dtrain/checkpoint/saver.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

// Reserves space for all files first. Then several pieces at a time go from the memory to the disk, without the page
// cache where the file system can do that, and are summed: at idle priority for three seconds, or until snapshot
// `number` is urgent, so that a machine whose processors are all busy does not hold it up for ever. `on_read` is called
// when the memory is no longer needed; after it the files are synchronised. Returns what the manifest says about them.
// SystemError names file and offset.
std::vector<ManifestFile> write_images(const OpenFolder& folder, const std::vector<FileImage>& images,
                                       const SnapshotMemory& memory, std::uint64_t number,
                                       const std::function<void()>& on_read);

}  // namespace dtrain::checkpoints
