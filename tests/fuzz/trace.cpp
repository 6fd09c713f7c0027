// A rank's trace file, as `dtrain trace` and the table of operators read it.
#include <fstream>

#include "../harness/temporary_folder.h"
#include "dtrain/analysis/export.h"
#include "dtrain/analysis/operators.h"
#include "dtrain/base/error.h"
#include "support.h"

namespace fs = std::filesystem;

void dtrain::fuzz::trace(Input input) {
  static const TemporaryFolder folder("/dev/shm");  // for all inputs, in memory, gone when the program ends
  fs::create_directories(folder / "profile");
  const fs::path file = folder / "profile" / "trace-rank-0000.json.gz";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  (void)to_line(analysis::to_json(analysis::operators_of_files({file})));
  analysis::RunProfile profile;
  profile.folder = folder.path();
  try {
    (void)analysis::merge_traces(profile, folder.path() / "merged.json.gz");
    (void)analysis::write_hta_files(profile, folder.path() / "hta");
  } catch (const Error&) {
  }
}
