// A rank's dump and an agent's, read as `dtrain summary` reads them: the reader, what it feeds, and what is printed.
#include <cstdlib>
#include <fstream>

#include "dtrain/analysis/summary.h"
#include "dtrain/analysis/summary_text.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "support.h"

namespace {

namespace fs = std::filesystem;

// One run folder for all inputs, in memory, gone when the program ends.
class RunFolder {
 public:
  RunFolder() {
    std::string name = "/dev/shm/dtrain-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder in /dev/shm");
    path_ = name;
    fs::create_directory(path_ / "profile");
  }
  ~RunFolder() { fs::remove_all(path_); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const fs::path& path() const { return path_; }
  void write(const std::string& name, dtrain::fuzz::Input content) const {
    std::ofstream(path_ / "profile" / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  }

 private:
  fs::path path_;
};

}  // namespace

void dtrain::fuzz::dump(Input input) {
  static const RunFolder folder;
  const auto [rank, agent] = split(input);
  folder.write("rank-0000.jsonl", rank);
  folder.write("agent-node0.jsonl", agent);
  try {
    const auto summary = analysis::summarize(folder.path());
    (void)to_line(analysis::to_json(summary));
    (void)analysis::render_summary(summary, {});
  } catch (const Error&) {
  }
}
