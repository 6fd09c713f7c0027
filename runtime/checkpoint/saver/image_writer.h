// Writes files whose bytes are in a SnapshotMemory.
#pragma once

#include <functional>
#include <vector>

#include "dtrain/checkpoint/manifest.h"
#include "dtrain/checkpoint/saver.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

// Reserves space for all files first. Then several threads write pieces from the memory to the disk, without the page
// cache if the file system supports that, and compute their checksums. They run at idle priority for three seconds, or
// until snapshot `number` is urgent, so that a machine with busy processors does not delay them for ever. `on_read` is
// called when the memory is no longer needed; then the files are synchronised. Returns their entries for the manifest.
// SystemError names file and offset.
std::vector<ManifestFile> write_images(const OpenFolder& folder, const std::vector<FileImage>& images,
                                       const SnapshotMemory& memory, std::uint64_t number,
                                       const std::function<void()>& on_read);

}  // namespace dtrain::checkpoints
