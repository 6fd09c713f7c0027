// A rank's trace file, as `dtrain trace` and the table of operators read it.
#include <fstream>
#include <stdexcept>

#include "dtrain/analysis/operators.h"
#include "dtrain/analysis/trace.h"
#include "dtrain/base/error.h"
#include "support.h"

namespace {

namespace fs = std::filesystem;

// One run folder for all inputs, in memory, gone when the program ends.
class TraceFolder {
 public:
  TraceFolder() {
    std::string name = "/dev/shm/dtrain-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder in /dev/shm");
    path_ = name;
    fs::create_directory(path_ / "profile");
  }
  ~TraceFolder() { fs::remove_all(path_); }
  TraceFolder(const TraceFolder&) = delete;
  TraceFolder& operator=(const TraceFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

void dtrain::fuzz::trace(Input input) {
  static const TraceFolder folder;
  const fs::path file = folder.path() / "profile" / "trace-rank-0000.json.gz";
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
