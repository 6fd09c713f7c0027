// A communicator reserves the memory for staging when an operation is staged for the first time.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"
#include "shared_memory/segment.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;

// Reserved bytes of the communicator's memory, of which this process has one descriptor open; -1: none is open.
std::int64_t reserved() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat info {};
    if (target.find("dtrain-comm") == std::string::npos || ::stat(entry.path().c_str(), &info) != 0) continue;
    return static_cast<std::int64_t>(info.st_blocks) * 512;
  }
  return -1;
}

TEST(StagingMemory, IsReservedAtItsFirstUse) {
  const auto outcomes = test::run_processes(TestWorld(3), [](ControlPlane& control, Communicator& comm) {
    const auto expect = [](bool holds, const std::string& what) {
      if (!holds) throw CommError(what + ": " + std::to_string(reserved()) + " bytes are reserved");
    };
    const auto rings = static_cast<std::int64_t>(Segment::staging_offset(0, 3)) + 4096;
    std::vector<float> data(30'000, 1.0f);
    const auto buffer = comm.allocate(data.size() * sizeof(float));
    auto* const registered = reinterpret_cast<float*>(buffer->bytes().data());
    comm.all_reduce(data.data(), 10, DataType::kFloat32).wait();
    comm.reduce(registered, registered, data.size(), DataType::kFloat32, 1).wait();
    control.barrier("all have read nothing that is staged");
    expect(reserved() > 0 && reserved() <= rings, "before an operation is staged");
    control.barrier("all have looked");
    // The root's data alone is staged.
    const bool is_root = comm.rank() == 1;
    comm.broadcast(is_root ? data.data() : registered, data.size(), DataType::kFloat32, 1).wait();
    control.barrier("the root has staged");
    const auto one = static_cast<std::int64_t>(2 * kStagingHalf);
    if (!is_root) expect(reserved() >= one && reserved() <= rings + one + 4096, "after the root has staged");
    if (is_root) expect(reserved() == -1, "once it has what it needs");
    control.barrier("all have looked again");
    comm.all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
    expect(reserved() == -1, "once all have staged");
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.status.success()) << outcome.error;
}

}  // namespace
}  // namespace dtrain::comm
